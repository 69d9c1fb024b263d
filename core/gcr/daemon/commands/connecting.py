"""Agents of a suspended job that have yet to connect: the former daemon died, or a program closed the connection.

A command waits for them before it takes its turn at the job: a process that comes may have to be recovered first, and a
recovery needs the turn.
"""

import time

from gcr.daemon.coordinator import Coordinator
from gcr.daemon.jobs import RECOVERY_PATIENCE, Job
from gcr.engine.node import Course
from gcr.job.process import Process
from gcr.processes import is_stopped

CONNECT_S = 5.0  # an agent that can run connects within one
POLL = 0.01


def await_agents(node: Coordinator, job: Job, course: Course) -> None:
    """Waits until the agents of a suspended job have connected, for a few seconds: then the command refuses.

    Raises as `Course.left`.
    """
    job.turn.settled.wait(course.left(RECOVERY_PATIENCE))
    end = time.monotonic() + CONNECT_S
    while _is_incomplete(node, job) and time.monotonic() < end:
        course.left(CONNECT_S)
        time.sleep(POLL)


def _is_incomplete(node: Coordinator, job: Job) -> bool:
    """Tells whether an agent has yet to connect. A stopped process is refused at once, and not waited for."""
    with node.jobs.lock:  # once an arrival is seen, its recovery has begun
        if job.decision is None or job.decision.away or job.decision.kind == "driver":
            return False
        return any(_will_connect(process) for process in job.begun)


def _will_connect(process: Process) -> bool:
    return not (process.connected or process.ended or is_stopped(process.identity.pid))
