"""Parts of a running program's memory, saved for a training checkpoint: copied aside within the device, or in place.

A copy of parts within the device is a snapshot (snapshot.py) that all their bytes go to: `copy_on` reads it to the
arena, a program that needs its room gets it, and `give_up` ends it. It has no layout and no table: the bytes lie back
to back.

Parts that the program does not write yet may stay where they are, and `read_in_place` reads them to the arena. They
need no room on the device. As many of them as there is room for are copied aside still: the program waits for the rest.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from math import gcd

from msgspec import Struct

from gcr.drain import DataDrain, DeviceRange, HandleSpec, Move, Span, Transfer
from gcr.errors import NoRoom, RolledBack, UnsupportedState
from gcr.memory.layout import spans_of_parts
from gcr.memory.pieces import Pieces
from gcr.protocol.operations.worker import Moved
from gcr.units import size as shown
from gcr.worker.guarded import copies_within, read_beside
from gcr.worker.held import HeldMemory
from gcr.worker.hostcopy import HostCopy
from gcr.worker.live import SLICE_BYTES
from gcr.worker.snapshot import COARSEST, ROOM_ID, Part, Snapshot, spare_bytes
from gcr.worker.telling import Telling, wait_all

Piece = tuple[int, int, int, bool]  # of a handle: its id, the offset, the bytes, and whether they may be read in place

LITTLE = 16
"""What must be copied aside may take a sixteenth of what is free also where a snapshot finds nothing to spare.

So a few buffers of a program that nearly fills its device do not keep all else from being read in place.
"""

GRAIN = 4096  # a piece is cut between the two ways at a multiple of it


class Needs(Struct, frozen=True):
    """The bytes of pieces: of those that must be copied aside, and of those that may be read in place."""

    aside: int
    in_place: int

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> "Needs":
        stays = sum(size for _, _, size, may_stay in pieces if may_stay)
        return cls(sum(size for _, _, size, _ in pieces) - stays, stays)


def make_room(copy: HostCopy, needs: Needs, fills: bool) -> None:
    """Makes room for the bytes on the host, and on the device for those that must be copied aside.

    fills: and for as many of the others as the device has room for. Raises NoRoom, UnsupportedState; then there is
    none. One call at a time a device.
    """
    drain = copy.memory.drain
    if not copies_within(drain):
        if needs.aside:
            raise UnsupportedState("this device copies nothing within itself")
        fills = False
    room = _room(drain, [*copy.memory.sizes.values()], needs.aside, needs.in_place if fills else 0)
    try:
        segments = copy.arena.promise(copy.owner, needs.aside + needs.in_place)
    except BaseException:
        if room:
            drain.release(room)
        raise
    with copy.lock:
        copy.snapshot, copy.segments = Snapshot(room), segments
        if copy.use.given_up:
            copy.give_room_back()
            copy.give_arena_back()
        copy.refuse_given_up()


def _room(drain: DataDrain, sizes: Sequence[int], least: int, more: int) -> DeviceRange | None:
    """Returns room for `least` bytes, and for as many `more` as there is room for; None for no bytes."""
    step, counted = gcd(COARSEST, *sizes), drain.memory()
    spare = spare_bytes(counted) // step * step
    wanted, most = (-(-nbytes // step) * step for nbytes in (least, least + more))
    if wanted > max(spare, (counted.total - counted.used) // LITTLE):
        text = f"a copy of {shown(least)} finds {shown(max(0, spare))} of device memory that is free for it"
        raise NoRoom(text, missing=wanted - spare)
    size = max(wanted, min(most, spare))
    return drain.create([HandleSpec(ROOM_ID, size)]) if size else None


def copy_aside(copy: HostCopy, pieces: Sequence[Piece], fills: bool, end: float) -> int:
    """Copies the pieces, back to back, to the room, and leaves those in place for which there is none.

    fills: as of `make_room`

    Returns the bytes that are left. The program may write to all others when this returns. Raises RolledBack for a
    piece of memory that is not held, NoRoom where another process needed the room meanwhile, DeadlinePassed.
    """
    memory, needs = copy.memory, Needs.of(pieces)
    with copy.lock, memory.lock:
        copy.refuse_given_up()
        snapshot = copy.snapshot
        if snapshot is None or copy.segments is None or (needs.aside and not copy.room_bytes):
            raise _taken()
        aside, snapshot.in_place = divide(pieces, copy.room_bytes - needs.aside if fills else 0)
        find, transfers = _finder(memory), list[Transfer]()
        if aside:
            assert snapshot.room
            moves, snapshot.later = _to_room(snapshot.room, aside, find, copy)
            transfers = [memory.drain.move(moves)]
        for part in snapshot.in_place:
            find(part)
        copy.began(transfers)
    wait_all(Telling(transfers, lambda _report: None), end)
    copy.ended(transfers)
    with copy.lock:
        if aside and snapshot.room is None:
            raise _taken()
    return sum(part.size for part in snapshot.in_place)


def divide(pieces: Sequence[Piece], more: int) -> tuple[list[Part], list[Part]]:
    """Divides pieces into parts to copy aside and parts to read in place.

    more: bytes of those that may be read in place which are copied aside, the first ones
    """
    aside, stays, offset = list[Part](), list[Part](), 0
    for id, at, size, may_stay in pieces:
        here = size if not may_stay or size <= more else max(0, more // GRAIN * GRAIN)
        more -= here if may_stay else 0
        if here or not size:
            aside.append(Part(id, at, offset, here))
        if here < size:
            stays.append(Part(id, at + here, offset + here, size - here))
        offset += size
    return aside, stays


def _to_room(
    room: DeviceRange, parts: Sequence[Part], find: "Finder", copy: HostCopy
) -> tuple[list[Move], Sequence[Span]]:
    """Returns the copies to the room, back to back, and those from there to the arena."""
    moves, later, at = list[Move](), list[tuple[DeviceRange, int, int, int]](), 0
    for part in parts:
        where, offset = find(part)
        moves.append(Move(room.address + at, where.address + offset, part.size))
        later.append((room, at, part.arena, part.size))
        at += part.size
    assert copy.segments is not None
    return moves, spans_of_parts(later, copy.segments.parts)


def read_in_place(copy: HostCopy, deadline: float) -> Moved:
    """Reads the parts that were left in place to the arena. The program may write to them when this returns.

    Reads in slices: a free of the program may wait for one. Raises RolledBack for memory that it has freed, NoRoom
    where host memory is lacking, DeadlinePassed.
    """
    began = time.monotonic()
    with copy.lock:
        parts = copy.snapshot.in_place if copy.snapshot else ()
    copy.keep_promised()
    for portion in _portions(parts, SLICE_BYTES):
        with copy.lock, copy.memory.lock:
            copy.refuse_given_up()
            assert copy.segments is not None
            find = _finder(copy.memory)
            placed = [(*find(part), part.arena, part.size) for part in portion]
            transfers = [read_beside(copy.memory.drain, spans_of_parts(placed, copy.segments.parts))]
            copy.began(transfers)
        wait_all(Telling(transfers, lambda _report: None), began + deadline)
        copy.ended(transfers)
    return Moved(sum(part.size for part in parts), time.monotonic() - began)


def _portions(parts: Sequence[Part], limit: int) -> Iterator[list[Part]]:
    """Yields the parts in their order, in portions of `limit` bytes; the last may be smaller."""
    line = Pieces.back_to_back(part.size for part in parts)
    stretches = ((at, min(limit, line.size - at)) for at in range(0, line.size, limit))
    for _, cuts in groupby(line.cuts(stretches), key=lambda cut: cut.stretch):
        found = []
        for cut in cuts:
            whole = parts[cut.piece]
            found.append(Part(whole.id, whole.at + cut.at, whole.arena + cut.at, cut.size))
        yield found


def _taken() -> NoRoom:
    return NoRoom("another program needed the device memory for the copy", missing=None)


Finder = Callable[[Part], tuple[DeviceRange, int]]


def _finder(memory: HeldMemory) -> Finder:
    """Returns what finds the range and the offset of a part in it. The memory's lock is held while it is used.

    It raises RolledBack for a part of memory that is not held.
    """
    where = {id: (each, at) for each in memory.ranges for id, at in each.offsets.items()}

    def find(part: Part) -> tuple[DeviceRange, int]:
        if part.id not in where or part.at < 0 or part.size <= 0 or part.at + part.size > memory.specs[part.id].size:
            text = f"{part.size} bytes of handle {part.id} are not held here: the program has freed it, perhaps"
            raise RolledBack(text)
        each, at = where[part.id]
        return each, at + part.at

    return find
