"""Duplicates of memory that a process is given back."""

import logging
from collections.abc import Sequence

from gcr.errors import DeadlinePassed
from gcr.job.process import Process
from gcr.memory.escrow import Keeper

log = logging.getLogger("gcr.engine")


def keep(process: Process, keeper: Keeper, ids: Sequence[int], fds: Sequence[int]) -> None:
    """A supervisor that is stopped delays no restore: it takes them once it goes on; the daemon has them now."""
    pid = process.identity.pid
    try:
        keeper.put(pid, ids, fds)
    except DeadlinePassed as error:
        log.warning("job %s: process %d: restored without its keeper: %s", process.job, pid, error)
