"""The job that this process belongs to, suspended and restored from inside.

A command may come from a process of the job itself: its interpreter goes on, and only its calls of the driver wait.
Integrations with servers use this (integrations/vllm, integrations/sglang).
"""

import logging
import os
import time
from collections.abc import Callable

from gcr.api.listings import JobInfo
from gcr.errors import NoSuchJob, UnsupportedState, WrongState
from gcr.library.calls import attach, jobs
from gcr.library.job import Job

log = logging.getLogger("gcr.ownjob")

TURN_S = 600.0  # for another command on the job to end
POLL_S = 0.01
SUSPENDED, RUNNING = "suspended", "running"


def suspend_own() -> None:
    """Suspends the job; its memory stays on its devices until another program needs the room. Raises GcrError."""
    _reach(SUSPENDED, _suspend)


def restore_own() -> None:
    """Brings the job back. Raises GcrError."""
    _reach(RUNNING, lambda job: job.restore())


def _suspend(job: Job) -> object:
    try:
        return job.checkpoint(resident=True)
    except UnsupportedState as cannot:  # ranks share memory, say
        log.info("%s: its memory does not stay on the device: %s", job.name, cannot)
        return job.checkpoint()


def _reach(wanted: str, act: Callable[[Job], object]) -> None:
    """Acts unless the job is there already. Another command has its turn first, and may do the same."""
    end = time.monotonic() + TURN_S
    while (job := _own()).state != wanted:
        try:
            act(attach(job.job))
            return
        except WrongState:
            if time.monotonic() > end:
                raise
        time.sleep(POLL_S)


def _own() -> JobInfo:
    """Raises NoSuchJob."""
    pid = os.getpid()
    for job in jobs():
        if pid == job.pid or any(each.pid == pid for each in job.processes):
            return job
    raise NoSuchJob(f"process {pid} belongs to no job", hint="start the program by gcr run")
