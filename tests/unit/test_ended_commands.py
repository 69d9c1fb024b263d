"""`gcr wait` and `gcr logs`: what they say where there is no end, no code and no log."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gcr import processes
from gcr.cli import ended
from gcr.cli.main import main
from gcr.job import runs
from gcr.job.runs import End, Run

GONE = 4194304 + 7  # no pid


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("GCR_SOCKET", raising=False)


def record(pid: int = GONE, **more: Any) -> Run:
    run = Run(
        job="llm",
        id="a1",
        socket=str(runs.socket_path()),
        boot=processes.boot_id(),
        space=processes.pid_space(),
        command=("true",),
        supervisor=GONE,
        supervisor_start=0,
        pid=pid,
        start=processes.start_time(pid) or 0,
        began=1.0,
        **more,
    )
    runs.write(run)
    return run


def said(capsys: pytest.CaptureFixture[str], *line: str) -> tuple[int, dict[str, Any]]:
    code = main(["--json", *line])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", ["wait", "logs"])
def test_an_unknown_job(capsys: pytest.CaptureFixture[str], command: str) -> None:
    record()
    code, answer = said(capsys, command, "lln")
    assert (code, answer["error"]["code"]) == (3, "no_such_job")
    assert answer["error"]["message"] == "no job 'lln'; did you mean llm?"


def test_a_job_that_still_runs_when_the_time_is_over_was_not_touched(capsys: pytest.CaptureFixture[str]) -> None:
    record(pid=os.getpid())
    code, answer = said(capsys, "wait", "llm", "--timeout", "0.2")
    assert (code, answer["error"]["code"]) == (4, "still_runs")
    main(["wait", "llm", "--timeout", "0.2"])
    assert capsys.readouterr().err == "gcr: llm still runs after 0.2 s\n"


def test_an_end_that_nothing_saw_has_no_code_to_return(capsys: pytest.CaptureFixture[str]) -> None:
    record()
    code, answer = said(capsys, "wait", "llm")
    assert (code, answer["error"]["code"], answer["error"]["state"]) == (3, "end_unknown", "exited")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(runs, "write", refuse)


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("command", ["wait", "logs"])
def test_a_job_that_may_have_ended_without_a_record_is_not_said_never_to_have_been(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, answer = said(capsys, command, "llm")
    assert (code, answer["error"]["code"]) == (3, "no_record")
    assert "none can be written now" in answer["error"]["message"] and "No space left" in answer["error"]["message"]


def test_a_job_that_goes_on_without_a_record_is_said_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended, "_still_there", lambda job: job == "llm")
    code, answer = said(capsys, "wait", "llm")
    assert (code, answer["error"]["code"]) == (3, "no_record")
    assert "llm goes on, and its record could not be written" in answer["error"]["message"]


def test_an_end_that_could_not_be_written_down_is_not_said_to_be_a_killing(
    capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    record()
    request.getfixturevalue("full")
    code, answer = said(capsys, "wait", "llm")
    assert (code, answer["error"]["code"]) == (3, "end_unknown")
    assert "a record cannot be written" in answer["error"]["message"]
    assert "killed" not in answer["error"]["message"]


@pytest.mark.parametrize(("returned", "code"), [(0, 0), (3, 3), (-15, 143)])
def test_the_code_is_the_one_of_gcr_run(capsys: pytest.CaptureFixture[str], returned: int, code: int) -> None:
    record(end=End.of_code(returned))
    given, answer = said(capsys, "wait", "llm")
    assert (given, answer["ok"], answer["exit_code"]) == (code, True, code)


def test_a_job_in_the_foreground_has_no_log_and_one_that_is_gone_is_said_to_be(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = record(end=End.of_code(0))
    assert said(capsys, "logs", "llm")[1]["error"]["code"] == "no_output"
    runs.write(replace(run, log=str(tmp_path / "gone.log")))
    code, answer = said(capsys, "logs", "llm")
    assert (code, "is gone" in answer["error"]["message"]) == (3, True)


def test_a_log_is_shown_byte_by_byte_with_its_older_part_first(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    log = tmp_path / "llm.log"
    log.write_bytes(b"b\xff\nc\n")
    Path(f"{log}.1").write_bytes(b"a\n")
    record(end=End.of_code(0), log=str(log))
    assert main(["logs", "llm", "-f"]) == 0
    assert capfdbinary.readouterr().out == b"a\nb\xff\nc\n"
    assert main(["logs", "llm", "-n", "1"]) == 0
    assert capfdbinary.readouterr().out == b"c\n"
