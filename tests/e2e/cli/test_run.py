"""`gcr run` and the library, as far as they go without a device: the supervisor is a part of its own."""

import errno
import io
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import gcr as library
from gcr import supervisor
from gcr.api.reports import CheckpointReport, RestoreReport
from gcr.backend import Simulator
from gcr.cli.main import main
from gcr.cli.output import NotWritten
from gcr.cli.unparking import reviver
from gcr.errors import NameTaken, NoRoom, NoSuchJob, UsageError
from gcr.native import sim_dir
from gcr.supervisor import JobSpec, Outcome

from .conftest import DEADLINE
from .fake_daemon import CHECKPOINT, RESTORE, FakeDaemon, answering, raising


@pytest.fixture
def specs(monkeypatch: pytest.MonkeyPatch) -> list[JobSpec]:
    """Returns the supervisor's requests; every job ends with code 7."""
    asked: list[JobSpec] = []

    def run(spec: JobSpec) -> Outcome:
        asked.append(spec)
        return Outcome(0, "llm", "/logs/llm") if spec.detach else Outcome(7, "llm")

    monkeypatch.setattr(supervisor, "run", run)
    return asked


RUN_IN_THE_FOREGROUND = """
import sys
from gcr import supervisor
from gcr.cli.main import main
supervisor.run = lambda spec: supervisor.Outcome(7, "llm", None, sys.argv[1] or None, "/a b/store", "no room")
main(["run", "--json", "--", "true"])
"""


@pytest.mark.parametrize(("image", "mode", "told"), [("", "w", True), ("night", "w", False), ("night", "a", True)])
def test_nothing_is_said_into_a_file_that_a_restore_compares(tmp_path: Path, image: str, mode: str, told: bool) -> None:
    command = [sys.executable, "-c", RUN_IN_THE_FOREGROUND, image]
    with (tmp_path / "output").open(mode) as output, (tmp_path / "errors").open(mode) as errors:
        subprocess.run(command, stdout=output, stderr=errors, check=True, timeout=DEADLINE)
    printed, said = ((tmp_path / name).read_text().splitlines() for name in ("output", "errors"))
    assert [json.loads(line)["exit_code"] for line in printed] == ([7] if told else [])
    back = "back with: gcr restore --image night --store '/a b/store'"
    lines = [f"gcr: llm was stopped into image night; {back}"] if image else []
    assert said == ([*lines, "gcr: no report in None: no room"] if told else [])


def test_run_hands_over_what_was_asked_and_returns_the_programs_code(specs: list[JobSpec]) -> None:
    line = [
        "--backend",
        "nvidia",
        "run",
        "--name",
        "llm",
        "--simulate",
        "nvidia",
        "--report",
        "r",
        "--",
        "a",
        "-b",
    ]
    assert main(line) == 7
    simulator = Simulator(sim_dir("nvidia"))
    wanted = {"name": "llm", "backend": "nvidia", "simulate": "nvidia", "simulator": simulator, "report": "r"}
    assert specs == [JobSpec(argv=("a", "-b"), reviver=reviver, **wanted)]


class FullDisk(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_run_detached_says_the_job_s_name_and_where_its_output_goes(
    specs: list[JobSpec], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "-d", "--name", "llm", "--", "true"]) == 0
    assert capsys.readouterr() == ("llm\n", "its output goes to /logs/llm: gcr logs llm\n")
    monkeypatch.setattr("sys.stdout", FullDisk())
    assert main(["run", "-d", "--name", "llm", "--", "true"]) == NotWritten.exit
    assert capsys.readouterr().err.endswith("(ENOSPC); llm is running\n")


def test_options_after_the_program_are_the_programs(specs: list[JobSpec]) -> None:
    assert main(["run", "python", "x.py", "--json", "--help"]) == 7
    assert specs[0].argv == ("python", "x.py", "--json", "--help")


def test_run_json(specs: list[JobSpec], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--json", "--name", "llm", "--", "true"]) == 7
    ended = json.loads(capsys.readouterr().out)
    assert (ended["exit_code"], ended["log"]) == (7, None)
    assert main(["run", "--json", "-d", "--name", "llm", "--", "true"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1,
        "command": "run",
        "ok": True,
        "job": "llm",
        "detached": True,
        "exit_code": None,
        "log": "/logs/llm",
    }


def test_a_failure_before_the_program_started_is_125(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def taken(spec: JobSpec) -> Outcome:
        raise NameTaken("llm runs already")

    monkeypatch.setattr(supervisor, "run", taken)
    assert main(["run", "--json", "--name", "llm", "--", "true"]) == 125
    assert json.loads(capsys.readouterr().out)["error"] == {
        "code": "name_taken",
        "exit": 125,
        "message": "llm runs already",
        "state": None,
        "hint": "",
    }


def test_the_library_reports_what_the_daemon_said(daemon: FakeDaemon) -> None:
    job = library.attach("llm")
    assert job.pid == 4711
    report = job.checkpoint(timeout=60, data_only=True)
    assert isinstance(report, CheckpointReport)
    assert report.processes[0].uncovered == {"pool": 4096}
    assert report.to_json() == {**CHECKPOINT, "wall_s": report.wall_s}
    back = job.restore()
    assert isinstance(back, RestoreReport)
    assert back.to_json() == {**RESTORE, "wall_s": back.wall_s}
    assert daemon.asked[1:] == [
        {"op": "checkpoint", "target": "llm", "timeout": 60, "data_only": True},
        {"op": "restore", "target": "llm"},
    ]


def test_the_library_asks_for_images(daemon: FakeDaemon, tmp_path: Path) -> None:
    made = {"image": "warm", "cut": "device", "bytes_total": 9, "bytes_changed": None, "bytes_zero": 4}
    cost = {**made, "bytes_written": 5, "dedup_ratio": 1.8, "parent": None, "parent_refused": None}
    daemon.answers["checkpoint"] = answering({**CHECKPOINT, **cost, "durable_s": 2.5})
    job = library.attach("llm")
    report = job.checkpoint(image="warm", wait="durable", live=True, max_bytes_per_s=1e9, store=tmp_path)
    assert (report.image, report.bytes_written, report.durable_s) == ("warm", 5, 2.5)
    assert report.to_json() == {**CHECKPOINT, **cost, "durable_s": 2.5, "wall_s": report.wall_s}
    job.restore(image="warm", store=tmp_path)
    (checkpoint, restore) = daemon.asked[1:]
    where = {"target": "llm", "image": "warm", "store": str(tmp_path)}
    how = {"wait": "durable", "live": True, "max_bytes_per_s": 1e9}
    assert checkpoint == {"op": "checkpoint", **where, **how}
    assert restore == {"op": "restore", **where}
    with pytest.raises(UsageError):
        job.checkpoint(live=True)


def test_a_report_cannot_be_changed(daemon: FakeDaemon) -> None:
    report = library.attach("llm").checkpoint()
    with pytest.raises(AttributeError):
        report.bytes = 0  # type: ignore[misc]


def test_a_newer_daemon_may_say_more(daemon: FakeDaemon) -> None:
    daemon.answers["restore"] = answering({**RESTORE, "weather": "fine"})
    assert library.attach("llm").restore().job == "llm"


def test_the_library_raises_the_daemons_errors(daemon: FakeDaemon) -> None:
    daemon.answers["checkpoint"] = raising(NoRoom("1 GiB short", missing=1 << 30, state="running", hint="free some"))
    with pytest.raises(NoRoom) as caught:
        library.attach("llm").checkpoint()
    assert (caught.value.missing, caught.value.state, caught.value.hint) == (1 << 30, "running", "free some")
    assert isinstance(caught.value, library.GcrError)


@pytest.mark.parametrize(("target", "error"), [("nobody", NoSuchJob), (4194304 + 1, NoSuchJob), ("Upper", UsageError)])
def test_attach_to_nothing(daemon: FakeDaemon, target: str | int, error: type[Exception]) -> None:
    with pytest.raises(error):
        library.attach(target)


def test_the_library_prints_nothing_and_adds_no_handler(
    daemon: FakeDaemon, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    import logging

    library.attach("llm").checkpoint()
    assert capfd.readouterr() == ("", "")
    assert not logging.getLogger("gcr").handlers


def test_calls_from_several_threads_do_not_wait_for_each_other(daemon: FakeDaemon) -> None:
    import threading

    together = threading.Barrier(3)

    def slow(_body: Mapping[str, Any], _request: object) -> Mapping[str, Any]:
        together.wait(10)
        return RESTORE

    daemon.answers["restore"] = slow
    jobs = [library.attach("llm") for _ in range(2)]
    threads = [threading.Thread(target=job.restore) for job in jobs]
    for thread in threads:
        thread.start()
    together.wait(10)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
