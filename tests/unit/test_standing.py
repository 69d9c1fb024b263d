"""What a command that was cut short says of a job that it has stopped into an image."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from reported import job_info

from gcr import processes
from gcr.api.listings import JobInfo
from gcr.cli import standing
from gcr.job import runs
from gcr.job.runs import End, Run

GONE = 4194304 + 7  # no pid
ROW = job_info(pid=GONE, state="exited")


@pytest.mark.parametrize("row", [None, ROW], ids=["gone", "ending"])
def test_an_interrupt_that_comes_too_late_names_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: JobInfo | None
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GCR_SOCKET", str(tmp_path / "gcrd.sock"))
    monkeypatch.setattr(standing, "settle", lambda _target: row)
    made = Run(
        job="llm",
        id="a1",
        socket=os.environ["GCR_SOCKET"],
        boot=processes.boot_id(),
        space=processes.pid_space(),
        command=("python",),
        supervisor=GONE,
        supervisor_start=0,
        pid=GONE,
        start=0,
        began=1.0,
    )
    runs.write(replace(made, end=replace(End.of_code(-9), was=runs.STOPPED, image="night")))
    error = standing.interrupted(["llm"], "night")
    assert error.state == "stopped"
    assert error.message.endswith("stopped into image night (gcr restore --image night)")
