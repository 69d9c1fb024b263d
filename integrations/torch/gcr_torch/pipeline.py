"""Brings pieces of a step to tensors: threads read and compare them, and the device copies those that came before.

    store -> a slot, read and compared there (gcr.image.read.fetching) -> tensor

A slot is free again once its copy has ended. The ring of slots is all the memory that is taken. It is small: a disk is
read faster into memory that a processor's cache still holds. So the slot that was freed last is used first. Slots that
CUDA copies from are page-locked until the end.
"""

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple, Protocol, Self

import torch

from gcr.checkpoints.loading import Bytes, memory_for
from gcr_torch import pagelock

SLOTS = 10  # three are read, up to four compared, and two copied at a time
_COPIES = 2  # under way at a time


class Ending(Protocol):
    """The end of a copy: an event of CUDA."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class Slot:
    """Memory for a piece."""

    def __init__(self, nbytes: int, again: bool) -> None:
        """`again`: it is used again; only such memory is page-locked. Raises OSError."""
        self.memory, self.again = memory_for(nbytes), again
        self._lockable, self._locked = again, False

    def page_locked(self) -> bool:
        """Page-locks the memory, unless that failed before. Returns whether it is page-locked."""
        if self._lockable and not self._locked:
            self._locked = self._lockable = pagelock.lock(self._address, len(self.memory))
        return self._locked

    def unlock(self) -> None:
        """Comes after the last copy."""
        if self._locked:
            self._locked = False
            pagelock.unlock(self._address)

    @property
    def _address(self) -> int:
        return torch.frombuffer(self.memory, dtype=torch.uint8).data_ptr()


class Piece(Protocol):
    """Some bytes of a step, and their target. `nbytes`: of the memory that they are read into."""

    @property
    def nbytes(self) -> int: ...

    def begin(self, room: memoryview) -> Bytes:
        """Begins to read them."""

    def put(self, found: memoryview, slot: Slot) -> Ending | None:
        """Copies them from the slot to the target. Returns None once that is over, else when it will be."""

    def over(self) -> None:
        """Is called when all bytes are in the target."""


def copy(target: torch.Tensor, found: torch.Tensor, slot: Slot) -> Ending | None:
    """Copies what lies in a slot, in order with the work of the target's current stream. Returns as `Piece.put`."""
    alike = found.dtype == target.dtype and found.is_contiguous() and target.is_contiguous()  # no memory between
    if target.device.type != "cuda" or not alike or not slot.page_locked():
        target.copy_(found)
        return None
    target.copy_(found, non_blocking=True)
    ending: Ending = torch.cuda.current_stream(target.device).record_event()
    return ending


class _Read(NamedTuple):
    piece: Piece
    coming: Bytes
    slot: Slot


class _Copied(NamedTuple):
    piece: Piece
    ending: Ending
    slot: Slot


class Pipeline:
    """A ring of slots, and the pieces in them. Nothing uses the slots after the `with` block."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes`: of a slot; a piece that needs more has memory of its own. Raises OSError."""
        self._nbytes = nbytes
        self._ring = [Slot(nbytes, again=True) for _ in range(SLOTS)]
        self._free = [*self._ring]
        self._read, self._copied = deque[_Read](), deque[_Copied]()  # in order

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for read in self._read:
            read.coming.stop()
        for copied in self._copied:
            with suppress(RuntimeError):  # of a device that failed: it copies nothing any more
                copied.ending.synchronize()
        for slot in self._ring:
            slot.unlock()

    def bring(self, pieces: Iterable[Piece]) -> None:
        """Brings all pieces, in order. Raises Damaged, StoreUnusable, and the errors of pieces."""
        for piece in pieces:
            slot = self._slot(piece.nbytes)
            self._read.append(_Read(piece, piece.begin(slot.memory), slot))
        while self._read:
            self._put()
        while self._copied:
            self._end()

    def _slot(self, nbytes: int) -> Slot:
        while not self._free:
            self._put() if self._read else self._end()
        return self._free.pop() if nbytes <= self._nbytes else Slot(nbytes, again=False)

    def _put(self) -> None:
        """Copies the piece that was begun first."""
        read = self._read[0]
        found = read.coming.result()
        self._read.popleft()
        while self._copied and (len(self._copied) == _COPIES or self._copied[0].ending.query()):
            self._end()
        if ending := read.piece.put(found, read.slot):
            self._copied.append(_Copied(read.piece, ending, read.slot))
            return
        while self._copied:  # pieces are over in order
            self._end()
        self._over(read.piece, read.slot)

    def _end(self) -> None:
        """Waits for the copy that was begun first."""
        self._copied[0].ending.synchronize()
        copied = self._copied.popleft()
        self._over(copied.piece, copied.slot)

    def _over(self, piece: Piece, slot: Slot) -> None:
        if slot.again:
            self._free.append(slot)
        piece.over()
