"""The belongings of a process with its keepers: memory that it was given back, and its staged copy."""

import logging
from collections.abc import Sequence
from functools import partial

from gcr.errors import DeadlinePassed
from gcr.job.process import Process
from gcr.memory.escrow import MOST_STAGED, Keeper
from gcr.memory.layout import SealedTable
from gcr.protocol.batches import paged
from gcr.protocol.seqpacket import close_all

log = logging.getLogger("gcr.engine")


def keep(process: Process, keeper: Keeper, ids: Sequence[int], fds: Sequence[int]) -> None:
    """Puts duplicates in escrow. A stopped supervisor takes them later and delays no restore: the daemon has them."""
    pid = process.identity.pid
    try:
        keeper.put(pid, ids, fds)
    except DeadlinePassed as error:
        log.warning("job %s: process %d: restored without its keeper: %s", process.job, pid, error)


def staged_with(keeper: Keeper, pid: int, transaction: int) -> list[int]:
    """Returns the sealed tables and segments that the keeper has of this suspension; the caller's.

    A keeper that was away may have those of an earlier one: none are returned then.
    Raises RolledBack, PeerGone, DamagedTable.
    """
    found = paged(partial(keeper.unstage, pid), MOST_STAGED, f"the keeper of process {pid}")
    try:
        if found and (staged := SealedTable.from_fd(found[0]).transaction) != transaction:
            log.warning("a keeper has the copy of transaction %d, not %d", staged, transaction)
            close_all(found)
            found = []
    except BaseException:
        close_all(found)
        raise
    return found
