"""A snapshot on the device of what is to be copied at the cut: a copy within the device takes a thirtieth of the way to
the host, which can then wait until the program runs again.

    room      made while the program runs, of memory that nobody uses
    moved     at the cut: what the arena has to have, as far as there is room
    read      while the program runs again
    over      the room is given back: read, or given up for somebody who needs the memory

What a snapshot says is of the cut: nothing here looks at the program's memory, or at the books of it, after `divide`.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import gcd
from threading import Event

from msgspec import Struct, field

from gcr.drain import DeviceMemory, DeviceRange, HandleSpec, Move, Span

SPARE_SHARE = 16
"""A sixteenth of the device stays free: 8.8 GiB of an H200, 1.5 of 24. Drivers take memory without asking gcr: for
modules that are loaded at their first launch, for local memory of kernels, for a context of another process.
"""

LAST_READ_S = 1.0
"""How long a program that finds no room waits for a snapshot to be read: at 55 GB/s some 50 GiB. A copy is lost
otherwise, and a pause in one allocation harms nobody; its agent waits for 10 s at most.
"""

COARSEST = 1 << 30
ROOM_ID = 0  # no allocation of a program's has it; the room is in a range of its own


class Snapshot(Struct):
    """`room`: None once it was given back. `later`: what is to be read of it; nothing before the cut.

    lost: given up for somebody else before everything was read. The holding's lock guards all but `over`.
    """

    room: DeviceRange | None
    later: Sequence[Span] = ()
    lost: bool = False
    over: Event = field(default_factory=Event)


def spare_bytes(counted: DeviceMemory) -> int:
    """What a snapshot may take of a device; less than nothing where others are near its end."""
    return counted.total - counted.used - counted.total // SPARE_SHARE


def room_for(sizes: Sequence[int], spare: int) -> list[HandleSpec]:
    """What to make for allocations of these sizes; nothing where not a granule of the device's is to be had.

    Granules are powers of two, and sizes of allocations are multiples of them.
    """
    step = gcd(COARSEST, *sizes)
    size = min(sum(sizes), spare // step * step)
    return [HandleSpec(ROOM_ID, size)] if size > 0 else []


def divide(plan: Iterable[Span], room: DeviceRange) -> tuple[list[Move], list[Span], list[Span]]:
    """Of copies to the host: moves into the room as far as it reaches, their way on from there, and the rest."""
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
    """The same copies in their order, cut so that each portion is of `limit` bytes but the last."""
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
