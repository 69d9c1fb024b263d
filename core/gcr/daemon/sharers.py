"""Processes under this daemon, by the random name under which each shares device memory."""

import logging
from collections.abc import Iterator

from gcr.daemon.jobs import Job, Jobs
from gcr.engine.joint import Located
from gcr.errors import GcrError
from gcr.job.process import Process
from gcr.peers.shares import shares_of
from gcr.processes import is_stopped

log = logging.getLogger("gcr.daemon")


def located(jobs: Jobs, name: int, pid: int) -> Located | None:
    """Returns the process with this name, also one that has ended.

    Without any, the one with this pid, which the other side may see as another.
    """
    for job, process in _heard(jobs):
        if _name_of(process) == name:
            return Located(job.name, process.identity.pid)
    for job in jobs.all():
        if name in job.ends.names:
            return Located(job.name, job.ends.names[name], ended=True)
    for job, process in _heard(jobs):
        if process.identity.pid == pid:
            return Located(job.name, pid)
    return None


def _heard(jobs: Jobs) -> Iterator[tuple[Job, Process]]:
    return ((job, process) for job in jobs.all() for process in job.begun)


def _name_of(process: Process) -> int:
    """Returns 0 for a process that does not say."""
    if process.peer is None or is_stopped(process.identity.pid):
        return 0
    try:
        return shares_of(process.agent).process
    except GcrError as error:
        log.info("job %s: process %d does not say its name: %s", process.job, process.identity.pid, error)
        return 0
