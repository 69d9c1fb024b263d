"""Output that cannot be written: the reader is gone, or the disk is full."""

import subprocess
import sys
from pathlib import Path

import pytest

from gcr.errors import NoSuchJob
from gcr.runtime import log_dir

from .conftest import DEADLINE, buffered, gcr_command
from .fake_daemon import JOBS, STATUS, FakeDaemon, answering, raising


@pytest.mark.parametrize("command", ["ps", "ps --json"])
def test_a_reader_that_goes_away_is_no_bug(daemon: FakeDaemon, command: str) -> None:
    daemon.answers["ps"] = answering({"jobs": JOBS * 20000})
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m gcr {command} | head -c 9; echo; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        env=buffered(),
        text=True,
        timeout=DEADLINE,
    )
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""
    assert not (log_dir() / "cli.log").exists()


FULL = "the report could not be written: No space left on device (ENOSPC)"


def to_a_full_disk(*line: str) -> tuple[int, str]:
    """Exit code and stderr."""
    env = buffered()
    with Path("/dev/full").open("w") as full:
        command = gcr_command(line)
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=DEADLINE)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "line",
    [("ps",), ("doctor",), ("devices",), ("daemon", "status"), ("completion", "bash")],
    ids=" ".join,
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_report_that_cannot_be_written_is_one_line(daemon: FakeDaemon, line: tuple[str, ...], as_json: bool) -> None:
    daemon.answers["status"] = answering(STATUS)
    assert to_a_full_disk(*line, *(["--json"] if as_json else [])) == (1, f"gcr: {FULL}\n")


@pytest.mark.parametrize(
    "line",
    [("--help",), ("--version",), ("ps", "--help"), ("daemon", "--help"), ("daemon", "stop", "-h")],
    ids=" ".join,
)
def test_help_that_cannot_be_written_is_the_same_line(line: tuple[str, ...]) -> None:
    assert to_a_full_disk(*line) == (1, f"gcr: {FULL}\n")


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("command", "state"), [("checkpoint", "suspended"), ("restore", "running")])
def test_nor_does_it_hide_where_the_job_stands(daemon: FakeDaemon, command: str, state: str, as_json: bool) -> None:
    line = (command, "llm", *(["--json"] if as_json else []))
    assert to_a_full_disk(*line) == (1, f"gcr: {FULL}; llm is {state}\n")
    assert not (log_dir() / "cli.log").exists()


def test_nor_does_it_hide_a_failure(daemon: FakeDaemon) -> None:
    daemon.answers["checkpoint"] = raising(NoSuchJob("no job llm"))
    code, told = to_a_full_disk("checkpoint", "llm", "--json")
    assert code == 3
    assert told.splitlines() == [f"gcr: {FULL}", "gcr: refused, nothing was touched", "  no job llm"]
