"""The way of bytes between a device and the ring of a copy, window by window (ring.py).

No lock is held while a transfer is waited for.
"""

import time
from collections.abc import Callable, Sequence

from gcr.drain import DataDrain, Span, Transfer
from gcr.errors import NoRoom, UsageError, WrongState
from gcr.memory.layout import pack
from gcr.worker.hostcopy import HostCopy
from gcr.worker.ring import Ring
from gcr.worker.telling import Telling, wait_all

Start = Callable[[DataDrain, Sequence[Span]], Transfer]
Windows = Sequence[tuple[int, int]]  # offset on the line, and size: one behind the other in a slot


def make_ring(copy: HostCopy, slot_bytes: int, most: int, least: int, beyond: bool = False) -> Ring:
    """Makes a ring of as many slots as fit, `least` to `most`, instead of reserved segments. Raises NoRoom.

    beyond: ignores the arena's limit, for a job that must come back.
    """
    with copy.lock:
        copy.refuse_given_up()
        copy.give_arena_back()
        copy.live = None  # a former copy, which has no place now
        for count in range(most, least, -1):
            try:
                return _take(copy, slot_bytes, count, beyond)
            except NoRoom:
                continue
        return _take(copy, slot_bytes, least, beyond)


def _take(copy: HostCopy, slot_bytes: int, count: int, beyond: bool) -> Ring:
    if count < 1 or slot_bytes < 1:
        raise UsageError(f"no ring has {count} slots of {slot_bytes} bytes")
    copy.ring = ring = Ring(copy.arena.take(copy.owner, count * slot_bytes, beyond), slot_bytes, count)
    return ring


def lay_out_held(copy: HostCopy) -> int:
    """Lays all held memory out on the line of the ring. Returns the bytes of the line."""
    with copy.lock, copy.memory.lock:
        ring_of(copy)
        layout = pack(copy.memory.ranges, copy.memory.sizes)
        copy.place(layout)
        return layout.size


def fill(copy: HostCopy, slot: int, windows: Windows, deadline: float) -> None:
    """Copies windows from the device to a slot.

    Raises WrongState without a ring, RolledBack where not all is held, DeadlinePassed, PeerGone.
    """
    _pass(copy, slot, windows, deadline, lambda drain, spans: drain.read(spans))


def empty(copy: HostCopy, slot: int, windows: Windows, deadline: float) -> None:
    """Copies the windows of a slot to the device. Raises as `fill` does."""
    _pass(copy, slot, windows, deadline, lambda drain, spans: drain.write(spans))


def _pass(copy: HostCopy, slot: int, windows: Windows, deadline: float, start: Start) -> None:
    end, memory = time.monotonic() + deadline, copy.memory
    with copy.lock, memory.lock:
        layout = copy.planned  # first: a process that has ended has no ring either
        spans = ring_of(copy).spans(slot, windows, memory.ranges, layout, memory.sizes)
        transfers = [start(memory.drain, spans)]
        copy.began(transfers)
    wait_all(Telling(transfers, lambda _report: None), end)
    copy.ended(transfers)


def ring_of(copy: HostCopy) -> Ring:
    """Returns the ring; the caller holds the lock. Raises WrongState without one."""
    if copy.ring is None:
        raise WrongState("there is no ring: none was made, or it was given up meanwhile")
    return copy.ring
