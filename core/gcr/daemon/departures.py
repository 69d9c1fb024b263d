"""Processes that end, or whose drivers shut down, in the middle of a command.

The command is taken back as after any failure, and begun again with the processes that are left.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from gcr.daemon.jobs import Job
from gcr.daemon.recovery import is_uneven
from gcr.engine.target import Target
from gcr.errors import GcrError, JobEnding, NotAGpuProcess, PeerGone, Unanswered, WrongState
from gcr.job.process import Process
from gcr.job.states import State
from gcr.processes import ProcessIdentity, alive, identify, is_stopped

log = logging.getLogger("gcr.daemon")

SETTLE_S = 2.0  # an end is seen so long after the agent's connection, at most; an agent that lives is back by then
POLL = 0.01

Answer = TypeVar("Answer")


def without_departed(job: Job, attempt: Callable[[], Answer]) -> Answer:
    """Returns the answer of `attempt`, which is made again where it failed because processes ended and others are left.

    Raises what `attempt` raises; JobEnding where no process is left.
    """
    while True:
        before, ends = _departed(job), job.ends.count
        try:
            return attempt()
        except GcrError as error:
            staying(list(job.processes.values()))  # asks them
            if job.ends.count == ends and _departed(job) <= before:
                raise
            if not staying(job.living):
                raise ending(job) from error
            if is_uneven(job):
                raise
            log.info("job %s: again without the processes that have ended: %s", job.name, error)


def _departed(job: Job) -> set[ProcessIdentity]:
    return {process.identity for process in list(job.processes.values()) if _is_departed(process)}


def _is_departed(process: Process) -> bool:
    """Returns whether it has departed. Records an end for good: in an exec the kernel names the former program."""
    if process.ended:
        process.end()
    return process.departed


def settle_ends(job: Job) -> None:
    """Marks the processes of the job that have ended: a recovery would wait for them."""
    staying(job.living)


def staying(processes: Sequence[Process]) -> list[Process]:
    """Returns the processes that can be suspended, or brought back."""
    return [process for process in processes if not has_departed(process)]


def has_departed(process: Process) -> bool:
    """Asks the process; an end that its connection tells of is waited for."""
    end = time.monotonic() + SETTLE_S
    while not _is_departed(process) and _unheard(process) and time.monotonic() < end:
        time.sleep(POLL)
    return _is_departed(process)


def _unheard(process: Process) -> bool:
    """Returns whether the agent of a process that was heard before cannot be asked now."""
    if process.peer is None or is_stopped(process.identity.pid):
        return False
    try:
        process.look()
    except PeerGone:
        return True
    except GcrError as error:
        log.debug("process %d: %s", process.identity.pid, error)
    return False


def ending(job: Job) -> GcrError:
    """Why nothing can be done with a job all processes of which have departed. Their program may live on without."""
    program = identify(job.program.pid) if job.program.pid else None
    if job.processes or not (program and alive(program)):
        return JobEnding(f"job {job.name} is ending: its processes have ended, or are in exit()", hint="gcr ps --all")
    return NotAGpuProcess("no process of this job uses a device", hint="gcr ps")


def outlives_decision(job: Job) -> bool:
    """Returns whether the job has a decision, and none of its processes is left off its devices."""
    if (decision := job.decision) is None:
        return False
    left = [process for process in job.living if not process.waits or decision.is_about(process.identity)]
    return all(process.state == State.RUNNING for process in left)


def refuse_half(job: Job) -> None:
    """Raises WrongState where a process of the job must be recovered first, JobEnding where all have ended."""
    if is_uneven(job):
        raise WrongState(f"job {job.name} is still being recovered", hint="gcr recover")
    if job.processes and not job.living:
        raise ending(job)


def refuse_silence(targets: Sequence[Target]) -> None:
    """Raises Unanswered where a process has everything back and does not take it: it is stopped, say."""
    silent = [t.pid for t in targets if t.process.state == State.RESTORING and alive(t.process.identity)]
    if silent:
        text = f"process {silent[0]} has everything back and does not answer; it goes on as soon as it does"
        raise Unanswered(text, state=State.RESTORING, hint="gcr ps")
