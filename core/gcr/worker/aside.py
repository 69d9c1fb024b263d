"""Parts of a running program's memory, saved for a training checkpoint: copied aside within the device, or in place.

A copy of parts within the device is a snapshot (snapshot.py) that all their bytes go to: `copy_on` reads it to the
arena, a program that needs its room gets it, and `give_up` ends it. It has no layout and no table: the bytes lie back
to back.

Parts that the program does not write yet may stay where they are, and `read_in_place` reads them to the arena. They
need no room on the device. As many of them as there is room for are copied aside still: the program waits for the rest.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from math import gcd
from threading import Lock

from msgspec import Struct, field

from gcr.drain import DataDrain, DeviceRange, HandleSpec, Move, Transfer
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

ROOM_BYTES = 2 << 30
"""The copy to a room of this size goes on while the next room is made.

On an H200 room for 32 GiB takes 10 ms to make, and the copy 17 ms.
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


def set_aside(copy: HostCopy, pieces: Sequence[Piece], fills: bool, end: float, turn: Lock) -> int:
    """Copies the pieces, back to back, to free memory of the device, and leaves those in place for which there is none.

    fills: of those that may be read in place, as many are copied as the device has room for · turn: to take free room

    Returns the bytes that are left. The program may write to all others when this returns. Raises RolledBack for a
    piece of memory that is not held, UnsupportedState, NoRoom, also for the host's memory; DeadlinePassed. After an
    error no room is kept.
    """
    needs = Needs.of(pieces)
    if not copies_within(copy.memory.drain):
        if needs.aside:
            raise UnsupportedState("this device copies nothing within itself")
        fills = False
    try:
        with turn:
            begun = _begin(copy, pieces, needs, fills)
            _place(copy, begun, needs.aside + needs.in_place)  # while the device copies
        wait_all(Telling(begun.transfers, lambda _report: None), end)
        copy.ended(begun.transfers)
        with copy.lock:
            if begun.later and not begun.snapshot.rooms:
                raise NoRoom("another program needed the device memory for the copy", missing=None)
    except BaseException:
        copy.give_room_back()
        raise
    return sum(part.size for part in begun.snapshot.in_place)


class Begun(Struct, frozen=True):
    """Copies to a snapshot that are under way.

    later: for each part its room, the offset there, the offset in the arena, and the bytes
    """

    snapshot: Snapshot
    transfers: list[Transfer] = field(default_factory=list)
    later: list[tuple[DeviceRange, int, int, int]] = field(default_factory=list)


def _begin(copy: HostCopy, pieces: Sequence[Piece], needs: Needs, fills: bool) -> Begun:
    """Makes room, and copies to each part of it while the next one is made.

    The locks are held meanwhile: a free of the program waits for these copies anyway.
    """
    memory = copy.memory
    step = gcd(COARSEST, *memory.sizes.values())
    room = _room_bytes(memory.drain, step, needs, fills) if needs.aside or fills else 0
    aside, in_place = divide(pieces, room - needs.aside if fills else 0)
    with copy.lock, memory.lock:
        copy.refuse_given_up()
        copy.snapshot = Snapshot(in_place=in_place)
        begun, find = Begun(copy.snapshot), _finder(memory)
        for part in (*aside, *in_place):
            find(part)
        for portion in _portions(aside, ROOM_BYTES):
            size = sum(part.size for part in portion)
            room_of_it = memory.drain.create([HandleSpec(ROOM_ID, -(-size // step) * step)])
            copy.snapshot.rooms.append(room_of_it)
            begun.transfers.append(memory.drain.move(_moves(room_of_it, portion, find, begun)))
            copy.began(begun.transfers[-1:])
    return begun


def expect(copy: HostCopy, nbytes: int) -> None:
    """Takes room on the host, if there is any, for a `set_aside` that is likely to be of so many bytes."""
    with copy.lock, suppress(NoRoom):  # it is for `set_aside` to say so
        if copy.segments is None and not copy.use.given_up:
            copy.segments = copy.arena.promise(copy.owner, nbytes)


def _place(copy: HostCopy, begun: Begun, nbytes: int) -> None:
    """Takes room on the host, where it is not expected, and notes where the bytes go that were copied aside."""
    with copy.lock:
        copy.refuse_given_up()
        if copy.segments is None or not copy.segments.just_hold(nbytes):
            copy.give_arena_back()
            copy.segments = copy.arena.promise(copy.owner, nbytes)
        begun.snapshot.later = spans_of_parts(begun.later, copy.segments.parts)


def renew_room(drain: DataDrain) -> None:
    """Takes free memory for a moment, where the device has much: the next save finds it ready.

    On an H200 the first allocation that comes some tenths of a second after 32 GiB were given back takes 8 ms, whatever
    its size, and the ones after it 0.2 ms. The driver seems to clear all that memory then. Raises NoRoom.
    """
    if spare_bytes(drain.memory()) >= ROOM_BYTES:
        drain.release(drain.create([HandleSpec(ROOM_ID, ROOM_BYTES)]))


def _room_bytes(drain: DataDrain, step: int, needs: Needs, fills: bool) -> int:
    """Returns the bytes to make room for: what must be copied aside, and as much more as is free. Raises NoRoom."""
    counted = drain.memory()
    spare = spare_bytes(counted) // step * step
    most = needs.aside + (needs.in_place if fills else 0)
    wanted, most = (-(-nbytes // step) * step for nbytes in (needs.aside, most))
    if wanted > max(spare, (counted.total - counted.used) // LITTLE):
        text = f"a copy of {shown(needs.aside)} finds {shown(max(0, spare))} of device memory that is free for it"
        raise NoRoom(text, missing=wanted - spare)
    return max(wanted, min(most, spare))


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


def _moves(room: DeviceRange, parts: Sequence[Part], find: "Finder", begun: Begun) -> list[Move]:
    """Returns the copies of parts to a room, back to back, and notes where they lie then."""
    moves, at = list[Move](), 0
    for part in parts:
        where, offset = find(part)
        moves.append(Move(room.address + at, where.address + offset, part.size))
        begun.later.append((room, at, part.arena, part.size))
        at += part.size
    return moves


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
