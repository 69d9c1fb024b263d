"""Memory of a suspended process that is made and refilled before its restore, piece by piece, where room is free.

It is resident memory (residence.py): the copy in host memory stays whole and decided, and the memory may be released at
any time. So neither the process nor another one that needs the room can lose by it. No lock is held while a transfer
is waited for; a restore that begins meanwhile takes what there is, and refills again what is not done.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from gcr.drain import DeviceRange, HandleSpec, Transfer
from gcr.errors import GcrError, NoRoom
from gcr.memory.layout import spans
from gcr.worker.hostcopy import HostCopy
from gcr.worker.refilling import write
from gcr.worker.residence import Residence
from gcr.worker.snapshot import spare_bytes

PIECE_BYTES = 512 << 20  # 10 ms of the link; a larger handle is a piece by itself


class _Piece(Struct, frozen=True):
    """Memory that is being refilled, in the residence that it belongs to."""

    where: DeviceRange
    residence: Residence
    transfer: Transfer


class Asked(Struct, frozen=True):
    """A piece that is asked for. `copy`: its number · `most`: bytes.

    begins: a call that goes on ends where what was made before is gone
    """

    copy: int
    most: int
    begins: bool


def refill_ahead(copy: HostCopy, asked: Asked, deadline: float, paced: Callable[[], bool]) -> int:
    """Makes and refills the next piece of a process's memory. Returns its bytes; 0 where there is none, or no room.

    paced: whether the driver's copies are let in between
    Raises DriverError, DeadlinePassed; the piece is released then.
    """
    piece = _begun(copy, asked, paced)
    if piece is None:
        return 0
    memory = copy.memory
    try:
        piece.transfer.wait(deadline)
    except GcrError:
        with memory.lock:
            if _is_there(copy, piece):
                memory.drop_unfilled()
        raise
    copy.ended([piece.transfer])
    with memory.lock:
        if not _is_there(copy, piece):  # evicted, or a restore has it, which refills it
            return 0
        piece.residence.filled.update(piece.where.offsets)
        return sum(memory.specs[i].size for i in piece.where.offsets)


def _begun(copy: HostCopy, asked: Asked, paced: Callable[[], bool]) -> _Piece | None:
    memory = copy.memory
    with copy.lock, memory.lock:
        residence = memory.residence
        free = residence is None and not memory.ranges and asked.begins
        if not (free or (residence and residence.copy == asked.copy)):
            return None
        if copy.use.given_up or copy.layout is None or copy.segments is None:
            return None
        if copy.arena.unpinned(copy.segments):  # they came from another worker; the restore has the slots for them
            return None
        specs = _fitting(copy, min(asked.most, spare_bytes(memory.drain.memory())))
        if not specs:
            return None
        try:
            where = memory.make(specs)
        except NoRoom:
            return None
        memory.residence = residence = residence or Residence(asked.copy)
        try:
            layout, segments = copy.layout.of(where.offsets), copy.segments.parts
            transfer = write(memory.drain, spans([where], memory.sizes, layout, segments), paced)
        except GcrError:
            memory.drop_unfilled()
            raise
        copy.began([transfer])
        return _Piece(where, residence, transfer)


def _fitting(copy: HostCopy, room: int) -> Sequence[HandleSpec]:
    """Returns handles of one piece, in the copy's order, that are not held and fit into so many bytes."""
    held, found, size = {*copy.memory.ids()}, list[HandleSpec](), 0
    for spec in copy.handles():
        if spec.id not in held and size + spec.size <= room and size < PIECE_BYTES:
            found.append(spec)
            size += spec.size
    return found


def _is_there(copy: HostCopy, piece: _Piece) -> bool:
    """Tells whether the piece is held still, and no restore has it. The memory's lock is held."""
    held = any(each is piece.where for each in copy.memory.ranges)
    return held and copy.memory.residence is piece.residence and not piece.residence.claimed
