"""Logs of detached jobs without a supervisor: the daemon keeps them within bounds."""

import logging

from gcr.daemon.jobs import Job
from gcr.errors import GcrError
from gcr.job import runs
from gcr.job.log import turn

log = logging.getLogger("gcr.daemon")


def bound(job: Job, most: int) -> None:
    """Bounds the log of a job whose supervisor has died; a supervisor that lives does that itself. Raises nothing."""
    if job.supervision.lasts or not job.token:
        return
    try:
        path = runs.log_path(job.name, identity := runs.identifier(job.token))
        if path.stat().st_size > most and _is_orphan(job.name, identity):
            turn(path, most)
    except FileNotFoundError:  # it was not detached
        return
    except (OSError, GcrError) as error:
        log.warning("job %s: its log is not kept small: %s", job.name, error)


def _is_orphan(job: str, identity: str) -> bool:
    return any(run.id == identity and not run.supervised for run in runs.runs_of(job))
