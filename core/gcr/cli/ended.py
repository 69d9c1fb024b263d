"""Jobs that have ended, or are being waited for: which record is meant, and how it is told."""

import time
from collections.abc import Sequence

from gcr import runs, units
from gcr.cli import text
from gcr.client import Client
from gcr.errors import DaemonUnavailable, EndUnknown, NoSuchJob, StillRuns
from gcr.names import meant
from gcr.runs import How, Run

HEAD = ("ENDED", "PID", "HOW", "AGO", "COMMAND")
POLL_S = 0.05
KNOWN_S = 5.0  # seconds within which a supervisor has written down an end that can be seen


def newest(job: str) -> Run:
    """The job of this name, the last one where there were several. Raises NoSuchJob."""
    everyone = runs.all_runs()
    found = next((run for run in everyone if run.job == job), None)
    if found is None:
        near = meant(job, [run.job for run in everyone])
        raise NoSuchJob(f"no job {job!r}{near}", hint="gcr ps --all")
    return found


def awaited(job: str, timeout: float | None) -> Run:
    """Wait until it has ended. Raises NoSuchJob, EndUnknown, StillRuns after `timeout` seconds."""
    end = None if timeout is None else time.monotonic() + timeout
    run = newest(job)
    while run.end is None or (run.end.how == How.UNKNOWN and _still_there(run)):
        if end is not None and time.monotonic() >= end:
            raise StillRuns(f"{job} still runs after {timeout:g} s", state="running")
        time.sleep(POLL_S)
        run = runs.again(run)
    if run.end.how == How.UNKNOWN:
        raise EndUnknown(f"{job} has ended, and how is not known: its supervisor was killed before", state="exited")
    return run


def _still_there(run: Run) -> bool:
    """The daemon has it as a job: processes of it outlived its program and its supervisor."""
    try:
        with Client.connect(autostart=False) as client:
            return any(job["job"] == run.job for job in client.request("ps")["jobs"])
    except DaemonUnavailable:
        return False


def table(ended: Sequence[Run], width: int | None) -> str:
    rows = [HEAD, *(_row(run) for run in ended)]
    return "\n".join(text.cut(line, width) for line in text.columns(rows).splitlines())


def _row(run: Run) -> tuple[str, ...]:
    assert run.end
    ago = units.age(time.time() - run.end.at)
    return (run.job, str(run.pid), run.end.said(), ago, text.printable(" ".join(run.command)))
