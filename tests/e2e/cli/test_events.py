"""`gcr events`: its lines, its JSON, what is chosen, and a follower across daemons. The events are a real History's."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gcr import schemas
from gcr.api.jobevents import JobEnded, JobRegistered, SupervisorGone
from gcr.api.requests import EventsRequest
from gcr.daemon.history import History
from gcr.daemon.permission import OURSELVES
from gcr.protocol.channel import Request
from gcr.runtime import runtime_dir
from gcr.testing.machine import until

from .conftest import DEADLINE, Gcr, buffered, gcr_command
from .fake_daemon import FakeDaemon

EARLY = "2026-01-01T00:00:00.000+00:00"


def answering(history: History, daemon: FakeDaemon) -> History:
    def answer(body: dict[str, Any], _request: Request) -> dict[str, Any]:
        asked = EventsRequest.from_json(body)
        return history.asked(asked, OURSELVES, daemon.hung_up).to_json()

    daemon.answers["events"] = answer
    return history


def registered(job: str, **more: str) -> JobRegistered:
    return JobRegistered(job=job, simulated=False, uid=7, **more)


def lines(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    for line in found:
        jsonschema.Draft202012Validator(schemas.load("events")).validate(line)
    return found


@pytest.fixture
def history(daemon: FakeDaemon) -> History:
    made = answering(History(), daemon)
    made.note(7, registered("old", time=EARLY))
    made.note(7, registered("llm"))
    made.note(7, JobEnded(job="llm", state="suspended"))
    return made


def test_events_are_a_line_each(gcr: Gcr, history: History) -> None:
    said = [line.split(maxsplit=2) for line in gcr("events").out.splitlines()]
    assert [words[2].split(maxsplit=1) for words in said] == [
        ["-", said[0][2].split(maxsplit=1)[1]],
        ["old", "job registered"],
        ["llm", "job registered"],
        ["llm", "job ended, suspended"],
    ]
    assert said[0][2].split(maxsplit=1)[1].startswith("daemon started, pid ")


def test_json_is_an_object_a_line_by_the_schema(gcr: Gcr, history: History) -> None:
    found = lines(gcr("events", "--json").out)
    assert [(line["seq"], line["event"]) for line in found] == [
        *((1, "daemon_started"), (2, "job_registered"), (3, "job_registered"), (4, "job_ended"))
    ]
    assert (found[1]["time"], found[1]["job"]) == (EARLY, "old")


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        (["llm"], ["llm", "llm"]),
        (["old"], ["old"]),
        (["none"], []),
        (["--since", "1h"], ["llm", "llm"]),
        (["--since", "2026-01-01T00:00:00+00:00"], ["old", "llm", "llm"]),
        (["--since", "2026-01-01T00:00:01+00:00"], ["llm", "llm"]),
        (["old", "--since", "1h"], []),
    ],
)
def test_a_job_and_a_time_choose(gcr: Gcr, history: History, words: list[str], jobs: list[str]) -> None:
    found = lines(gcr("events", "--json", *words).out)
    assert [line["job"] for line in found if "job" in line] == jobs


@pytest.mark.parametrize("when", ["soon", "10", "-5m", "1e9d", "999999999d", "2026-13-01"])
def test_a_time_that_is_none_is_refused(gcr: Gcr, when: str) -> None:
    ran = gcr("--json", "events", "--since", when)
    assert (ran.code, ran.json["error"]["code"]) == (2, "usage")


def test_without_a_daemon_there_are_no_events_and_none_is_started(gcr: Gcr) -> None:
    ran = gcr("events", "--json")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "gcr: no daemon runs, so there are no events\n"
    assert not list(runtime_dir().iterdir())


@pytest.fixture
def follower(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Yields a process that follows, whose output is in the file `said`."""
    with (tmp_path / "said").open("wb") as said, (tmp_path / "told").open("wb") as told:
        process = subprocess.Popen(gcr_command(["events", "-f", "--json"]), stdout=said, stderr=told, env=buffered())
    yield process
    process.kill()
    process.wait(DEADLINE)


def test_a_follower_goes_on_with_the_next_daemon(
    follower: "subprocess.Popen[bytes]", tmp_path: Path, home: Path
) -> None:
    said, told = tmp_path / "said", tmp_path / "told"

    def has(count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = until(
            lambda: rows if len(rows := lines(said.read_text())) >= count else None, DEADLINE, f"{count} events"
        )
        return found

    path = runtime_dir() / "gcrd.sock"
    until(lambda: told.read_text(), DEADLINE, "it says that there is no daemon")
    with FakeDaemon(path) as daemon:
        first = answering(History(), daemon)
        assert has(1)[0]["event"] == "daemon_started"
        first.note(7, registered("llm"))
        has(2)
        first.note(7, SupervisorGone(job="llm"))
        assert [row["seq"] for row in has(3)] == [1, 2, 3]
        daemon.hung_up.set()  # its threads wait no longer
    with FakeDaemon(path) as daemon:
        second = answering(History(), daemon)
        second.note(7, registered("llm"))
        assert [(row["seq"], row["event"]) for row in has(5)[3:]] == [(1, "daemon_started"), (2, "job_registered")]
        follower.send_signal(signal.SIGINT)
        assert follower.wait(DEADLINE) == 130
        daemon.hung_up.set()
    assert told.read_text() == "gcr: no daemon answers; events of the next one follow\n" * 2
    assert len(lines(said.read_text())) == 5


def test_a_follower_ends_with_its_reader(daemon: FakeDaemon, history: History) -> None:
    command = f"{' '.join(gcr_command(['events', '-f']))} | head -n 2; echo ${{PIPESTATUS[0]}}"
    with subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE, env=buffered(), text=True) as shell:
        assert shell.stdout
        assert [shell.stdout.readline() != "" for _ in range(2)] == [True, True]

        def more() -> bool | None:  # it hears of its reader's end when it writes
            history.note(7, registered("more"))
            return True if shell.poll() is not None else None

        until(more, DEADLINE, "it ends")
        assert shell.stdout.read() == "0\n"
