"""Parts of a running program's memory, copied aside within the device, for a training checkpoint.

A copy of such parts is a snapshot (snapshot.py) that all bytes go to: `copy_on` reads it to the arena, a program that
needs its room gets it, and `give_up` ends it. It has no layout and no table: the bytes lie back to back.
"""

from collections.abc import Iterator, Sequence
from math import gcd

from gcr.drain import DataDrain, DeviceRange, HandleSpec, Move
from gcr.errors import NoRoom, RolledBack, UnsupportedState
from gcr.memory.layout import spans_of_parts
from gcr.units import size as shown
from gcr.worker.guarded import copies_within
from gcr.worker.held import HeldMemory
from gcr.worker.hostcopy import HostCopy
from gcr.worker.snapshot import COARSEST, ROOM_ID, Snapshot, spare_bytes
from gcr.worker.telling import Telling, wait_all

Piece = tuple[int, int, int]  # of a handle: its id, the offset, the bytes


def make_room(copy: HostCopy, nbytes: int) -> None:
    """Makes room for `nbytes` on the device and on the host. Raises NoRoom, UnsupportedState; then there is none.

    One call at a time a device.
    """
    drain = copy.memory.drain
    if not copies_within(drain):
        raise UnsupportedState("this device copies nothing within itself")
    room = _room(drain, [*copy.memory.sizes.values()], nbytes)
    try:
        segments = copy.arena.promise(copy.owner, nbytes)
    except BaseException:
        drain.release(room)
        raise
    with copy.lock:
        copy.snapshot, copy.segments = Snapshot(room), segments
        if copy.use.given_up:
            copy.give_room_back()
            copy.give_arena_back()
        copy.refuse_given_up()


def _room(drain: DataDrain, sizes: Sequence[int], nbytes: int) -> DeviceRange:
    step = gcd(COARSEST, *sizes)
    wanted, spare = -(-nbytes // step) * step, spare_bytes(drain.memory())
    if wanted > spare:
        text = f"a copy of {shown(nbytes)} finds {shown(max(0, spare))} of device memory that is free for it"
        raise NoRoom(text, missing=wanted - spare)
    return drain.create([HandleSpec(ROOM_ID, wanted)])


def copy_aside(copy: HostCopy, pieces: Sequence[Piece], end: float) -> None:
    """Copies the pieces, back to back, to the room. The program may write to its memory when this returns.

    Raises RolledBack for a piece of memory that is not held, NoRoom where another process needed the room meanwhile,
    DeadlinePassed.
    """
    memory = copy.memory
    with copy.lock, memory.lock:
        copy.refuse_given_up()
        snapshot, segments = copy.snapshot, copy.segments
        if snapshot is None or snapshot.room is None or segments is None:
            raise _taken()
        moves = [*_moves(memory, pieces, snapshot.room.address)]
        nbytes = sum(move.size for move in moves)
        snapshot.later = spans_of_parts([(snapshot.room, 0, 0, nbytes)], segments.parts)
        transfers = [memory.drain.move(moves)]
        copy.began(transfers)
    wait_all(Telling(transfers, lambda _report: None), end)
    copy.ended(transfers)
    with copy.lock:
        if snapshot.room is None:
            raise _taken()


def _taken() -> NoRoom:
    return NoRoom("another program needed the device memory for the copy", missing=None)


def _moves(memory: HeldMemory, pieces: Sequence[Piece], target: int) -> Iterator[Move]:
    """Yields copies of the pieces to addresses from `target` on. The memory's lock is held."""
    where = {id: each.address + at for each in memory.ranges for id, at in each.offsets.items()}
    for id, at, size in pieces:
        if id not in where or at < 0 or size <= 0 or at + size > memory.specs[id].size:
            raise RolledBack(f"{size} bytes of handle {id} are not held here: the program has freed it, perhaps")
        yield Move(target, where[id] + at, size)
        target += size
