"""A snapshot on the device of the bytes to copy at the cut.

A copy within the device takes a thirtieth of the time of a copy to the host, which can then wait until the program runs
again.

    room      made while the program runs, of free memory
    moved     at the cut: the bytes that the arena must have, as far as there is room
    read      while the program runs again
    over      the room is given back: after the read, or before it where a program needs the memory

A snapshot shows the cut: after `divide` this module looks neither at the program's memory nor at its books.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import gcd
from threading import Event

from msgspec import Struct, field

from gcr.drain import DeviceMemory, DeviceRange, HandleSpec, Move, Span
from gcr.memory.pieces import Cut, Pieces

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


class Part(Struct, frozen=True, gc=False):
    """Bytes of a handle: the offset in it, the offset in the arena, and the size."""

    id: int
    at: int
    arena: int
    size: int


class Snapshot(Struct):
    """One snapshot. `rooms`: the memory that it lies in, in order; none once that was given back.

    later: the copies to read it; none before the cut

    in_place: of a save (aside.py): parts that are not in the room, and are read from the program's own memory
    lost: given up for another process before all was read. The holding's lock guards all but `over`.
    """

    rooms: list[DeviceRange] = field(default_factory=list)
    later: Sequence[Span] = ()
    in_place: Sequence[Part] = ()
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


def divide(plan: Sequence[Span], room: DeviceRange) -> tuple[list[Move], list[Span], list[Span]]:
    """Divides copies to the host: moves into the room while it lasts, the copies from there, and the rest."""
    moves, later, rest = list[Move](), list[Span](), list[Span]()
    line = Pieces.back_to_back(span.size for span in plan)
    fits = min(line.size, room.size)
    for cut in line.cuts([(0, fits), (fits, line.size - fits)]):
        part = _part(plan, cut)
        if cut.stretch == 0:
            moves.append(Move(room.address + cut.done, part.device, part.size))
            later.append(Span(room.address + cut.done, part.host, part.size))
        else:
            rest.append(part)
    return moves, later, rest


def portions(spans: Sequence[Span], limit: int) -> Iterator[list[Span]]:
    """Yields the copies in their order, in portions of `limit` bytes; the last may be smaller."""
    line = Pieces.back_to_back(span.size for span in spans)
    stretches = ((at, min(limit, line.size - at)) for at in range(0, line.size, limit))
    for _, cuts in groupby(line.cuts(stretches), key=lambda cut: cut.stretch):
        yield [_part(spans, cut) for cut in cuts]


def _part(spans: Sequence[Span], cut: Cut) -> Span:
    whole = spans[cut.piece]
    return Span(whole.device + cut.at, whole.host + cut.at, cut.size)
