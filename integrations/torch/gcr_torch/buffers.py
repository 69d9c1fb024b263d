"""Host memory for copies of states: a buffer for each state that is saved at a time, used again by later ones.

A buffer is a memory file, so another process can be lent it (gcr.checkpoints.helper).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from threading import Lock
from weakref import finalize

import torch
from msgspec import Struct

from gcr.checkpoints.region import Region
from gcr_torch import pagelock, tensors

ALIGNED = 64  # bytes between the beginnings of two tensors are a multiple


class Memory(Struct, frozen=True):
    """The memory of a buffer. `pinned`: page-locked for CUDA."""

    region: Region
    pinned: bool


class Buffer:
    """Memory for the tensors of one state, which are given places in it one behind the other.

    It is free again when neither this nor a tensor in it is referred to any more.
    """

    def __init__(self, memory: Memory | None) -> None:
        self._memory, self._at = memory, 0

    @property
    def regions(self) -> Sequence[Region]:
        return [self._memory.region] if self._memory else []

    def tensor(self, size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Returns a contiguous tensor. There is room for those that `Buffers.taken` was told of, and no others."""
        nbytes = size.numel() * dtype.itemsize
        if not nbytes:
            return torch.empty(size, dtype=dtype)
        assert self._memory and self._at + nbytes <= self._memory.region.nbytes, "another tensor than was counted"
        found = self._memory.region.memory(self._at, nbytes)
        found.buffer = self
        self._at += padded(nbytes)
        return tensors.of_bytes(memoryview(found), dtype, size)


class Buffers:
    """Buffers, free or not. Thread-safe: staged tensors are dropped on any thread.

    The garbage collector may give memory back in the middle of any method here, so `_give_back` takes no lock.
    """

    def __init__(self) -> None:
        self.total = 0
        self._free = deque[Memory]()
        self._lock = Lock()

    def taken(self, sizes: Iterable[int], pin: bool) -> Buffer:
        """Returns a buffer for tensors of these bytes, page-locked if `pin` and the driver can. Raises OSError."""
        nbytes = sum(map(padded, sizes))
        if not nbytes:
            return Buffer(None)
        memory = self._found(nbytes, pin) or self._made(nbytes, pin)
        buffer = Buffer(memory)
        finalize(buffer, self._give_back, memory).atexit = False
        return buffer

    def _found(self, nbytes: int, pin: bool) -> Memory | None:
        """Takes the smallest free memory that serves; where none does, those that are too small are dropped."""
        with self._lock:
            free = self._all_free()
            alike = [memory for memory in free if memory.pinned >= pin]
            large = [memory for memory in alike if memory.region.nbytes >= nbytes]
            gone = [min(large, key=lambda memory: memory.region.nbytes)] if large else alike
            self._free.extend(memory for memory in free if memory not in gone)
            if large:
                return gone[0]
            self.total -= sum(memory.region.nbytes for memory in gone)
            return None

    def _all_free(self) -> list[Memory]:
        """Takes all free memory."""
        found: list[Memory] = []
        with suppress(IndexError):
            while True:
                found.append(self._free.popleft())
        return found

    def _made(self, nbytes: int, pin: bool) -> Memory:
        region = Region.made(nbytes)
        with self._lock:
            self.total += nbytes
        return Memory(region, pin and _pinned(region))

    def _give_back(self, memory: Memory) -> None:
        self._free.append(memory)

    def drop(self) -> None:
        """Frees the memory of free buffers."""
        with self._lock:
            self.total -= sum(memory.region.nbytes for memory in self._all_free())


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNED) * ALIGNED


def _pinned(region: Region) -> bool:
    """Page-locks memory for as long as it is there, where CUDA is in use. Returns whether it did."""
    if not pagelock.lock(region.first, region.nbytes):
        return False
    finalize(region, pagelock.unlock, region.first).atexit = False  # it runs before the older one, which unmaps
    return True
