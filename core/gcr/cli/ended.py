"""Jobs that have ended, or are being waited for: which record is meant, and how it is told."""

import time
from collections.abc import Sequence

from gcr import units
from gcr.cli import text
from gcr.errors import EndUnknown, GcrError, NoRecord, NoSuchJob, StillRuns
from gcr.job import runs
from gcr.job.runs import How, Run
from gcr.names import meant
from gcr.rendezvous.client import Client

HEAD = ("ENDED", "PID", "HOW", "AGO", "COMMAND")
POLL_S = 0.05


def newest(job: str) -> Run:
    """The job of this name, the last one where there were several. Raises NoSuchJob, NoRecord."""
    everyone = runs.all_runs()
    found = next((run for run in everyone if run.job == job), None)
    if found is None:
        _refuse_unrecorded(job)
        near = meant(job, [run.job for run in everyone])
        raise NoSuchJob(f"no job {job!r}{near}", hint="gcr ps --all")
    return found


def _refuse_unrecorded(job: str) -> None:
    """Raises NoRecord where the job goes on without a record, or may have ended without one."""
    why = runs.refusal()
    because = f" ({why})" if why else ""
    if _still_there(job):
        text = f"{job} goes on, and its record could not be written{because}: no command can tell its end"
        raise NoRecord(text, hint="make room on that disk; gcr ps shows the job while it goes on")
    if why:
        text = f"there is no record of a job {job!r}, and none can be written now ({why})"
        raise NoRecord(text, hint="make room on that disk: how a job ended meanwhile is not known")


def awaited(job: str, timeout: float | None) -> Run:
    """Wait until it has ended. Raises NoSuchJob, NoRecord, EndUnknown, StillRuns after `timeout` seconds."""
    end = None if timeout is None else time.monotonic() + timeout
    run = newest(job)
    while run.end is None or (run.end.how == How.UNKNOWN and _still_there(job)):
        if end is not None and time.monotonic() >= end:
            raise StillRuns(f"{job} still runs after {timeout:g} s", state="running")
        time.sleep(POLL_S)
        run = runs.again(run)
    if run.end.how == How.UNKNOWN:
        raise _unknown(job)
    return run


def _unknown(job: str) -> EndUnknown:
    why = runs.refusal()
    because = f"a record cannot be written ({why})" if why else "its supervisor was killed, or could not write it down"
    return EndUnknown(f"{job} has ended, and how is not known: {because}", state="exited")


def _still_there(name: str) -> bool:
    """Returns True if the daemon has the job: processes of it outlived its program and its supervisor."""
    try:
        with Client.connect(autostart=False) as client:
            return any(job.job == name for job in client.jobs().jobs)
    except GcrError:  # no daemon, or none that answers
        return False


def table(ended: Sequence[Run], width: int | None) -> str:
    rows = [HEAD, *(_row(run) for run in ended)]
    return "\n".join(text.cut(line, width) for line in text.columns(rows).splitlines())


def _row(run: Run) -> tuple[str, ...]:
    assert run.end
    ago = units.age(time.time() - run.end.at)
    return (run.job, str(run.pid), run.end.said(), ago, text.printable(" ".join(run.command)))
