"""Memory that no keeper holds and its process cannot export again. It is made anew, and can leave then.

A driver exports no handle that was imported (r580 answers INVALID_VALUE). When supervisor, worker and daemon
that kept its descriptors have died, nothing outside the process has any. So behind the closed gate the agent puts new
memory in its place: the same bytes, at the same addresses. It needs room for one handle at a time.
"""

import logging
import time
from collections.abc import Sequence

from gcr.engine.target import Target
from gcr.errors import NoRoom, RolledBack, UnsupportedState

log = logging.getLogger("gcr.engine")

BATCH = 32  # handles of one request: it has a deadline


def close_books(target: Target) -> None:
    """Closes the books of a process behind its closed gate; memory without a keeper is made anew before.

    Raises Contradiction, UnsupportedState, NoRoom, DriverError, RolledBack.
    """
    target.read_shares()
    target.read_mappings()
    target.exports.settle_frees()
    rehome(target)
    target.books.close()


def rehome(target: Target) -> None:
    """Makes the `unkept` memory of a process anew, behind its closed gate, with the same bytes.

    Raises UnsupportedState for memory that it lends, NoRoom, DriverError; RolledBack where the process hands out less
    than it made.
    """
    ids = sorted(target.exports.unkept)
    if not ids:
        return
    _refuse_lent(target, ids)
    began, size = time.monotonic(), sum(target.exports.unkept.values())
    for first in range(0, len(ids), BATCH):
        _with_room(target, ids[first : first + BATCH])
    target.exports.export_again(ids)
    if target.exports.unkept:
        raise RolledBack(f"process {target.pid} made memory anew, and did not hand out all of it")
    seconds = time.monotonic() - began
    text = "job %s: process %d: %d handles, %d bytes, that no keeper held made anew in %.3f s"
    log.warning(text, target.process.job, target.pid, len(ids), size, seconds)


def _refuse_lent(target: Target, ids: Sequence[int]) -> None:
    """Raises UnsupportedState for memory that another process holds as well: that one would keep the old memory."""
    lent = sorted({each.id for each in target.shares.lent} & set(ids))
    if lent:
        size = sum(target.exports.unkept[id] for id in lent)
        text = f"process {target.pid} lends {size >> 20} MiB of memory that no keeper holds any more: it cannot leave"
        raise UnsupportedState(text, hint="docs/limitations.md#memory-that-processes-share")


def _with_room(target: Target, ids: Sequence[int]) -> None:
    """Makes gcr give up snapshots and resident memory on the devices before it refuses. Raises NoRoom."""
    try:
        target.process.agent.rehome(target.transaction, ids)
    except NoRoom:
        target.node.free_room(target.bytes_by_device)
        try:
            target.process.agent.rehome(target.transaction, ids)
        except NoRoom as short:
            raise _refusal(target, ids) from short


def _refusal(target: Target, ids: Sequence[int]) -> NoRoom:
    largest = max(target.exports.unkept[id] for id in ids)
    missing = max(0, largest - sum(target.free_bytes(target.bytes_by_device).values()))
    text = (
        f"memory of process {target.pid} that no keeper holds any more must be made anew, {largest >> 20} MiB at a time"
    )
    return NoRoom(f"{text}: there is no room on its device", missing=missing, hint="docs/troubleshooting.md#made-anew")
