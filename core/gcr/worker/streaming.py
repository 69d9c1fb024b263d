"""The copies between a device and the ring of a holding, window by window (ring.py).

A copy does not hold the holding's lock while it waits for its transfer.
"""

import time
from collections.abc import Callable, Sequence

from gcr.drain import DataDrain, Span, Transfer
from gcr.errors import NoRoom, UsageError, WrongState
from gcr.memory.layout import pack
from gcr.worker.holding import Holding
from gcr.worker.ring import Ring
from gcr.worker.telling import Telling, wait_all

Copy = Callable[[DataDrain, Sequence[Span]], Transfer]
Window = tuple[int, int, int]  # slot, offset on the line, size


def make_ring(holding: Holding, slot_bytes: int, most: int, least: int, beyond: bool = False) -> Ring:
    """Makes a ring of as many slots as fit, `least` to `most`, instead of reserved segments. Raises NoRoom.

    beyond: ignores the arena's limit, for a job that must come back.
    """
    with holding.lock:
        holding.copy.give_arena_back()
        for count in range(most, least, -1):
            try:
                return _take(holding, slot_bytes, count, beyond)
            except NoRoom:
                continue
        return _take(holding, slot_bytes, least, beyond)


def _take(holding: Holding, slot_bytes: int, count: int, beyond: bool) -> Ring:
    if count < 1 or slot_bytes < 1:
        raise UsageError(f"no ring has {count} slots of {slot_bytes} bytes")
    holding.copy.ring = ring = Ring(
        holding.copy.arena.take(holding.copy.owner, count * slot_bytes, beyond), slot_bytes, count
    )
    return ring


def drop_ring(holding: Holding) -> None:
    """Returns the ring to the arena, once no transfer in flight writes there. Idempotent."""
    with holding.lock:
        holding.copy.drop_ring()


def lay_out_held(holding: Holding) -> int:
    """Lays all held memory out on the line of the ring. Returns the bytes of the line."""
    with holding.lock:
        _ring(holding)
        holding.copy.layout = pack(holding.memory.ranges, holding.memory.sizes)
        return holding.copy.layout.size


def fill(holding: Holding, window: Window, deadline: float) -> None:
    """Copies a window from the device.

    Raises WrongState without a ring, RolledBack where not all is held, DeadlinePassed, PeerGone.
    """
    _pass(holding, window, deadline, lambda drain, spans: drain.read(spans))


def empty(holding: Holding, window: Window, deadline: float) -> None:
    """Copies a window to the device. Raises as `fill` does."""
    _pass(holding, window, deadline, lambda drain, spans: drain.write(spans))


def _pass(holding: Holding, window: Window, deadline: float, copy: Copy) -> None:
    end = time.monotonic() + deadline
    with holding.lock:
        layout = holding.copy.planned  # first: a process that has ended has no ring either
        spans = _ring(holding).spans(window, holding.memory.ranges, layout, holding.memory.sizes)
        moving = copy(holding.drain, spans)
        holding.memory.transfers.append(moving)
    wait_all(Telling([moving], lambda _report: None), end)
    with holding.lock:
        if moving in holding.memory.transfers:  # a call that unmaps may have finished it
            holding.memory.transfers.remove(moving)


def _ring(holding: Holding) -> Ring:
    """Returns the ring; the caller holds the lock. Raises WrongState without one."""
    if holding.copy.ring is None:
        raise WrongState("there is no ring: none was made, or it was given up meanwhile")
    return holding.copy.ring
