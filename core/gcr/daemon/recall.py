"""Facts of a job that a new daemon is not told of: its supervisor is dead, or has not come back yet."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from gcr.backend import Device
from gcr.daemon.jobs import Job
from gcr.daemon.labels import Labels
from gcr.errors import GcrError
from gcr.job import runs

log = logging.getLogger("gcr.daemon")


def recall_program(job: Job) -> None:
    """Command and pid, as the supervisor wrote them down at the start. Raises nothing."""
    with suppress(OSError, GcrError):
        run = next((run for run in runs.runs_of(job.name) if run.end is None and _is_of(run, job)), None)
        if run and not job.program.argv:
            job.program.argv = run.command
        if run and job.program.pid is None and run.program_lives:  # a supervisor tells of it after the command
            job.program.runs_as(run.pid)


def _is_of(run: runs.Run, job: Job) -> bool:
    return not job.token or run.id == runs.identifier(job.token)


def recall_labels(job: Job, labels: Labels, devices: Callable[[], Sequence[Device]]) -> None:
    """Short names of the devices that the job has left. Asks the driver; raises nothing."""
    try:
        labels.learn(job.world, sorted({uuid for p in job.living for uuid in p.suspension.bytes_by_device}), devices)
    except GcrError as error:
        log.info("job %s: its devices have no short names: %s", job.name, error)
