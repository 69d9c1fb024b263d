"""Processes that their driver does not give back: the journal has them, and the others of the job stay suspended.

A driver may refuse for good (the process is `lost`), or at each attempt until a deadline. Then `gcr restore --without`
brings the others back.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from gcr.engine.node import note
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.errors import DriverError, Lost
from gcr.job.decisions import Unreturned
from gcr.job.states import State
from gcr.losterrors import ProcessLost

log = logging.getLogger("gcr.engine")


@contextmanager
def noting_refusals(target: Target, alone: bool) -> Iterator[None]:
    """Notes a process that its driver does not give back within the block. `alone`: the job has no other process.

    Raises what the block raises; the error of a driver says how the others come back.
    """
    try:
        yield
    except Lost:
        lose(target)
        raise
    except DriverError as error:
        _note(target)
        if alone:
            raise
        job, pid = target.process.job, target.pid
        text = f"the driver does not bring process {pid} back: {error.message}"
        hint = f"gcr restore {job}; or gcr restore {job} --without {pid}, which ends that process"
        raise DriverError(text, hint=hint) from error


def lose(target: Target) -> None:
    """Records that the driver will never give a process back."""
    log.warning("job %s: process %d is lost: its driver will not give it back", target.process.job, target.pid)
    target.process.settle(State.LOST)
    _note(target)


def _note(target: Target) -> None:
    quietly("note", partial(note, target.node.journal, target.process.job, Unreturned(target.pid)))


def process_lost(job: str, lost: Sequence[int]) -> ProcessLost:
    """Returns the error about a job that is suspended but for these processes."""
    which = ", ".join(map(str, sorted(lost)))
    text = f"the driver will not give process {which} of job {job} back; its other processes are suspended"
    hint = " ".join([f"gcr restore {job}", *(f"--without {pid}" for pid in sorted(lost))])
    return ProcessLost(text, hint=f"{hint} brings the others back, and ends it")
