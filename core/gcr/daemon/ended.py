"""The record of a job's end, where its supervisor did not write it."""

import logging

from gcr.errors import GcrError
from gcr.job.runs import identifier, note_end

log = logging.getLogger("gcr.daemon")


def note_job_end(job: str, token: str, was: str) -> None:
    """Writes down the end of a job. `was`: its state then. Raises nothing."""
    try:
        note_end(job, identifier(token) if token else None, was)
    except (OSError, GcrError) as error:
        log.warning("job %s: its end is not noted: %s", job, error)
