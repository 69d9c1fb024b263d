"""The record of a job's end, where its supervisor did not write it."""

import logging
import os
import time
from threading import Thread

from gcr import processes
from gcr.daemon.jobs import Job
from gcr.errors import GcrError
from gcr.job.decisions import KeptImage
from gcr.job.runs import Run, identifier, note_end, write
from gcr.runtime import socket_path

log = logging.getLogger("gcr.daemon")


SUPERVISOR_S, LOOK_S = 5.0, 0.05  # a supervisor that is killed with its program may be the last to go


def note_job_end(job: str, token: str, was: str, kept: KeptImage | None = None) -> None:
    """Writes down the end of a job, once its supervisor is gone. Raises nothing.

    was: its state then · kept: the image that it was stopped into
    """
    if not _noted(job, token, was, kept):
        Thread(target=_note_soon, args=(job, token, was, kept), name="gcr-ended", daemon=True).start()


def _note_soon(job: str, token: str, was: str, kept: KeptImage | None) -> None:
    end = time.monotonic() + SUPERVISOR_S
    while time.monotonic() < end and not _noted(job, token, was, kept):
        time.sleep(LOOK_S)


def _noted(job: str, token: str, was: str, kept: KeptImage | None) -> bool:
    try:
        return note_end(job, identifier(token) if token else None, was, kept)
    except (OSError, GcrError) as error:
        log.warning("job %s: its end is not noted: %s", job, error)
        return True


def note_contained(job: Job) -> None:
    """Writes the record of a job in a container: its supervisor can write only within the container. Raises nothing."""
    supervisor = job.supervision.supervisor
    above = supervisor.pid if supervisor else os.getpid()
    pid = job.program.pid or min(job.processes, default=0)
    run = Run(
        job=job.name,
        id=identifier(job.token),
        socket=str(socket_path()),
        boot=processes.boot_id(),
        space=processes.pid_space(),
        command=job.program.argv or (job.name,),
        supervisor=above,
        supervisor_start=(processes.start_time(above) or 0) if supervisor else 0,
        pid=pid,
        start=processes.start_time(pid) or 0,
        began=processes.started_at(pid) if pid else time.time(),
    )
    try:
        write(run)
    except (OSError, GcrError) as error:
        log.warning("job %s: its record is not written: %s", job.name, error)
