"""The log of a detached job after its supervisor was killed."""

import os
from pathlib import Path

import pytest

from gcr import processes
from gcr.daemon.jobs import Job
from gcr.daemon.outputs import bound
from gcr.engine.node import World
from gcr.job import runs
from gcr.job.runs import Run

GONE = 4194304 + 7  # no pid
TOKEN = "t" * 32


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GCR_SOCKET", str(tmp_path / "gcrd.sock"))


def job(token: str = TOKEN) -> Job:
    return Job("llm", token, World("nvidia"))


def log_of(supervisor: int) -> Path:
    """Returns the full log of a job with that supervisor."""
    identity, me = runs.identifier(TOKEN), os.getpid()
    log = runs.log_path("llm", identity)
    log.write_text("x" * 100)
    run = Run(
        job="llm",
        id=identity,
        socket=os.environ["GCR_SOCKET"],
        boot=processes.boot_id(),
        space=processes.pid_space(),
        command=("serve",),
        supervisor=supervisor,
        supervisor_start=processes.start_time(supervisor) or 0,
        pid=me,
        start=processes.start_time(me) or 0,
        began=1.0,
        log=str(log),
    )
    runs.write(run)
    return log


def test_the_daemon_turns_it() -> None:
    log = log_of(GONE)
    bound(job(), 100)
    assert log.stat().st_size == 100
    with log.open("a") as program:
        program.write("more")
        program.flush()
        bound(job(), 100)
        assert (log.read_text(), Path(f"{log}.1").read_text()) == ("", "x" * 100 + "more")
        program.write("and on")
    assert log.read_text() == "and on"


def test_a_supervisor_that_lives_does_it_itself() -> None:
    log = log_of(os.getpid())
    bound(job(), 10)
    assert log.stat().st_size == 100


def test_a_job_without_a_log_has_none_to_turn(caplog: pytest.LogCaptureFixture) -> None:
    bound(job(), 10)
    bound(job(token=""), 10)
    assert not caplog.records


def test_a_log_that_cannot_be_turned_is_told(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of(GONE)
    Path(f"{log}.1").mkdir()
    bound(job(), 10)
    assert log.stat().st_size == 100
    assert "job llm: its log is not kept small" in caplog.text
