"""Command lines: what parses, what help and --verbose say, and answers that make no sense."""

import json
from pathlib import Path
from typing import Any

import pytest

from gcr.cli.main import SUBCOMMANDS, main
from gcr.errors import NoRoom, NotOurs, StandsStill
from gcr.protocol.jsonbody import error_to_json
from gcr.rendezvous import former
from gcr.runtime import log_dir
from gcr.version import __version__

from .conftest import Gcr
from .fake_daemon import CHECKPOINT, JOBS, PID, FakeDaemon, answering

BAD_LINES = [
    (),
    ("nonsense",),
    ("checkpoint",),
    ("checkpoint", "Upper"),
    ("checkpoint", "-1"),
    ("checkpoint", "0"),
    ("checkpoint", "007"),
    ("checkpoint", "a" * 64),
    ("checkpoint", "llm", "--live"),
    ("checkpoint", "llm", "--image", "Warm"),
    ("checkpoint", "llm", "--image", "warm", "--leave-running", "--data-only"),
    ("restore",),
    ("restore", "llm", "--image", "warm"),
    ("checkpoint", "llm", "--timeout", "0"),
    ("checkpoint", "llm", "--timeout", "soon"),
    ("restore", "llm", "--image", "warm", "more"),
    ("run", "--name", "4711", "--", "true"),
    ("run", "--simulate", "intel", "--", "true"),
    ("run",),
    ("completion", "tcsh"),
    ("--backend", "n o", "devices"),
]


@pytest.mark.parametrize("line", BAD_LINES, ids=" ".join)
def test_a_line_that_does_not_parse_is_exit_2(gcr: Gcr, daemon: FakeDaemon, line: tuple[str, ...]) -> None:
    ran = gcr(*line)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err
    as_json = gcr("--json", *line)
    assert as_json.code == 2
    assert as_json.json["error"]["code"] == "usage"
    assert daemon.asked == []


@pytest.mark.parametrize("name", ["a", "a" * 63, "llm-2.b_c"])
def test_names(gcr: Gcr, daemon: FakeDaemon, name: str) -> None:
    assert gcr("checkpoint", name).code == 0
    assert daemon.asked[0]["target"] == name


@pytest.mark.parametrize("asked", ["amd", "ascend"])
def test_without_a_device_it_is_said_where_simulated_ones_are_seen(gcr: Gcr, asked: str) -> None:
    ran = gcr("--backend", asked, "-v", "devices")
    assert ran.err == ""
    assert ran.out.splitlines()[0] == "no devices; gcr doctor says why"
    assert f"gcr run --simulate {asked} -- gcr devices" in ran.out


def test_recover(gcr: Gcr, daemon: FakeDaemon) -> None:
    assert gcr("recover").out.splitlines()[1].split() == ["llm", "frozen", "running", "rolled", "back"]
    assert gcr("recover", "--json").json["jobs"][0]["action"] == "rolled back"


def test_recover_tells_of_each_job_and_the_worst_failure(gcr: Gcr, daemon: FakeDaemon) -> None:
    done = {"job": "llm", "was": "frozen", "now": "running", "action": "rolled back"}
    errors = [
        NoRoom("not a byte", missing=7, state="frozen"),
        StandsStill("it stands", state="frozen"),
        NotOurs("theirs"),
    ]
    failed = [{"job": f"j{number}", "error": error_to_json(error)} for number, error in enumerate(errors)]
    daemon.answers["recover"] = answering({"jobs": [done], "failed": failed})
    ran, told = gcr("recover"), gcr("recover", "--json")
    assert (ran.code, told.code) == (5, 5)
    assert ran.out.splitlines()[1].split() == ["llm", "frozen", "running", "rolled", "back"]
    assert [line for line in ran.err.splitlines() if line.startswith("gcr: ")] == [
        "gcr: j0: refused, nothing was touched",
        "gcr: j1: it stands",
        "gcr: j2: refused, nothing was touched",
    ]
    assert told.json["jobs"] == [done, *failed]
    assert told.json["error"] == failed[1]["error"]
    daemon.answers["recover"] = answering({"jobs": [], "failed": failed[:1]})
    assert gcr("recover").out == ""  # neither "nothing to recover" nor an empty table


def test_verbose_names_the_daemon_and_the_time_of_each_phase(gcr: Gcr, daemon: FakeDaemon, home: Path) -> None:
    daemon.answers["checkpoint"] = answering({**CHECKPOINT, "phases_s": {"drained": 0.5, "prepared": 0.25}})
    quiet, told = gcr("checkpoint", "llm"), gcr("-v", "checkpoint", "llm")
    assert "gcr.rendezvous.client" not in quiet.err
    assert told.out == quiet.out
    assert f"gcr.rendezvous.client: gcrd {__version__}, pid {PID}, at " in told.err
    assert "gcr.rendezvous.client: checkpoint: answered after " in told.err
    assert "checkpoint: prepared at 0.250 s, drained at 0.500 s" in told.err
    assert "gcr.config: settings of " in gcr("images", "-vv", "--store", str(home / "store")).err


def test_every_subcommand_has_help_with_an_example(gcr: Gcr) -> None:
    for name in SUBCOMMANDS:
        text = gcr(name, "--help").out
        for word in ("Example:", f"gcr {name}", "--json", "--timeout", "--backend", "--verbose"):
            assert word in text, f"{name} --help lacks {word}"


def test_a_bug_leaves_its_traceback_in_the_log_and_one_line_for_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(former, "left", lambda: {}["jobs"])
    log = log_dir() / "cli.log"
    assert main(["ps"]) == 1
    assert tuple(capsys.readouterr()) == ("", f"gcr: a bug in gcr: KeyError('jobs') (traceback in {log})\n")
    assert "Traceback" in log.read_text()
    assert main(["ps", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "internal"


@pytest.mark.parametrize("answer", [{"surprise": 1}, {"jobs": 5}, {"jobs": [{**JOBS[0], "pid": "7"}]}])
def test_an_answer_of_another_shape_is_a_typed_error(gcr: Gcr, daemon: FakeDaemon, answer: dict[str, Any]) -> None:
    daemon.answers["ps"] = answering(answer)
    ran = gcr("ps")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("gcr: an answer that is no JobList: ")
    assert gcr("ps", "--json").json["error"]["code"] == "internal"
