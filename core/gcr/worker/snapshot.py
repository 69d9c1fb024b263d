"""A snapshot on the device of the bytes to copy at the cut.

A copy within the device takes a thirtieth of the time of a copy to the host, which can then wait until the program runs
again.

    room      made while the program runs, of free memory
    moved     at the cut: the bytes that the arena must have, as far as there is room
    read      while the program runs again
    over      the room is given back: after the read, or before it where a program needs the memory

A snapshot shows the cut: after `divide` this module looks neither at the program's memory nor at its books.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import gcd
from threading import Event

from msgspec import Struct, field

from gcr.drain import DeviceMemory, DeviceRange, HandleSpec, Move, Span

SPARE_SHARE = 16
"""A sixteenth of the device stays free: 8.8 GiB of an H200, 1.5 of 24 GiB.

Drivers take memory without asking gcr: for modules loaded at their first launch, for local memory of kernels, for a
context of another process.
"""

LAST_READ_S = 1.0
"""Seconds that a program without room waits for the read of a snapshot: some 50 GiB at 55 GB/s.

Without the wait the copy would be lost, and one allocation may pause: its agent waits for 10 s at most.
"""

COARSEST = 1 << 30
ROOM_ID = 0  # no allocation of a program has this id


class Snapshot(Struct):
    """One snapshot. `room`: None once it was given back. `later`: the copies to read it; none before the cut.

    lost: given up for another process before all was read. The holding's lock guards all but `over`.
    """

    room: DeviceRange | None
    later: Sequence[Span] = ()
    lost: bool = False
    over: Event = field(default_factory=Event)


def spare_bytes(counted: DeviceMemory) -> int:
    """Returns the bytes that a snapshot may take of a device; below 0 where the device is nearly full."""
    return counted.total - counted.used - counted.total // SPARE_SHARE


def room_for(sizes: Sequence[int], spare: int) -> list[HandleSpec]:
    """Returns the memory to make for allocations of these sizes; none where not one granule is free.

    Granules are powers of two, and sizes of allocations are multiples of them.
    """
    step = gcd(COARSEST, *sizes)
    size = min(sum(sizes), spare // step * step)
    return [HandleSpec(ROOM_ID, size)] if size > 0 else []


def divide(plan: Iterable[Span], room: DeviceRange) -> tuple[list[Move], list[Span], list[Span]]:
    """Divides copies to the host: moves into the room while it lasts, the copies from there, and the rest."""
    moves, later, rest = list[Move](), list[Span](), list[Span]()
    at, end = room.address, room.address + room.size
    for span in plan:
        fits = min(span.size, end - at)
        if fits:
            moves.append(Move(at, span.device, fits))
            later.append(Span(at, span.host, fits))
        if fits < span.size:
            rest.append(Span(span.device + fits, span.host + fits, span.size - fits))
        at += fits
    return moves, later, rest


def portions(spans: Iterable[Span], limit: int) -> Iterator[list[Span]]:
    """Yields the copies in their order, in portions of `limit` bytes; the last may be smaller."""
    portion, left = list[Span](), limit
    for span in spans:
        done = 0
        while done < span.size:
            size = min(span.size - done, left)
            portion.append(Span(span.device + done, span.host + done, size))
            done, left = done + size, left - size
            if not left:
                yield portion
                portion, left = [], limit
    if portion:
        yield portion
