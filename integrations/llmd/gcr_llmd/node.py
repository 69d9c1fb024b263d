"""The jobs of this machine: their states in llm-d's words, what a request targets, and how jobs move.

The state of a job is gcr's and is read anew for each call: other programs move jobs as well, and agents are replaced.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

import gcr
from gcr.errors import GcrError, NoSuchJob, WrongState
from gcr_llmd.operations import Sizes, text_of
from gcr_llmd.wire import JobState

RUNNING, SAVED = JobState.JOB_STATE_RUNNING, JobState.JOB_STATE_SAVED
TRANSITIONING, FAULTED = JobState.JOB_STATE_TRANSITIONING, JobState.JOB_STATE_FAULTED
_AT_REST = {"running": RUNNING, "suspended": SAVED, "data_suspended": SAVED, "lost": FAULTED}
_ENDED = "exited"


class Jobs(Protocol):
    """The jobs of a machine. Each method raises GcrError."""

    def known(self) -> Sequence[gcr.JobInfo]: ...

    def suspend(self, name: str) -> Sizes:
        """Frees the job's device memory, and returns when it is free."""

    def restore(self, name: str) -> Sizes:
        """Brings the job back."""


class GcrJobs:
    """The jobs of this user, through gcr's library."""

    def known(self) -> Sequence[gcr.JobInfo]:
        return gcr.jobs()

    def suspend(self, name: str) -> Sizes:
        nbytes = gcr.attach(name).checkpoint().bytes
        return Sizes(host=nbytes, device=nbytes)

    def restore(self, name: str) -> Sizes:
        return Sizes(device=gcr.attach(name).restore().bytes)


def states(jobs: Iterable[gcr.JobInfo], moving: Collection[str]) -> dict[str, JobState]:
    """Returns the state of each job that has not ended. `moving`: jobs that an operation of this agent moves.

    A job that has made no call of its driver yet is RUNNING: gcr suspends it as any other.
    """
    return {each.job: _state(each, moving) for each in jobs if each.state != _ENDED}


def _state(job: gcr.JobInfo, moving: Collection[str]) -> JobState:
    if job.job in moving or job.changing:
        return TRANSITIONING
    return _AT_REST.get(job.state, TRANSITIONING)


def targets(jobs: Sequence[gcr.JobInfo], job_id: str, pids: Sequence[int]) -> list[str]:
    """Returns the jobs that are meant: the one of that name, or, where pids are given, those that have these processes.

    Raises NoSuchJob for an unknown name, WrongState for pids that are of no job, or of another than the one of that
    name.
    """
    alive = [each for each in jobs if each.state != _ENDED]
    named = [each.job for each in alive if each.job == job_id]
    if not pids:
        if not named:
            raise NoSuchJob(f"no job {job_id}", hint=f"start it with gcr run --name {job_id}")
        return named
    owners = {pid: next((each.job for each in alive if each.is_meant(pid)), None) for pid in pids}
    if strange := sorted(pid for pid, owner in owners.items() if owner is None):
        text = f"processes that belong to no job of gcr: {', '.join(map(str, strange))}"
        raise WrongState(text, hint="start it with gcr run")
    found = sorted({owner for owner in owners.values() if owner})
    if named and found != named:
        raise WrongState(f"job {job_id} does not have these processes, which belong to {', '.join(found)}")
    return found


def together(names: Sequence[str], act: Callable[[str], Sizes], undo: Callable[[str], Sizes]) -> Sizes:
    """Acts on all of these jobs, or on none: one failure has the others undone. Raises GcrError."""
    total, done = Sizes(), list[str]()
    for name in names:
        try:
            total += act(name)
        except GcrError as error:
            for other in reversed(done):
                _undo(error, other, undo)
            raise
        done.append(name)
    return total


def _undo(error: GcrError, name: str, undo: Callable[[str], Sizes]) -> None:
    try:
        undo(name)
    except GcrError as second:  # must not hide the first
        error.add_note(f"job {name} was not taken back: {text_of(second)}")
