"""Host memory that two processes share: memory files at consecutive addresses of this process."""

import ctypes
from collections.abc import Sequence
from typing import Any, Self
from weakref import finalize

from gcr.errors import RolledBack
from gcr.memory import hostmap
from gcr.memory.addresses import HUGE_PAGE, round_up
from gcr.memory.memfiles import checked_size, end_hold, fill, promised_memfd
from gcr.protocol.seqpacket import close_all


class Region:
    """Addresses that hold memory once it has come. Freed with the last object that refers to it.

    holds: the descriptors keep the memory still (gcr.memory.memfiles.hold_still) until then
    first: the first address · nbytes: of the addresses
    sizes, fds: of the memory's segments, in order; the descriptors stay the region's
    """

    def __init__(self, nbytes: int, *, holds: bool = True) -> None:
        """Raises OSError."""
        self.nbytes = nbytes
        self._size = round_up(nbytes) + HUGE_PAGE
        self._reserved = hostmap.reserve(self._size)
        self.first = -(-self._reserved // HUGE_PAGE) * HUGE_PAGE
        self.sizes: list[int] = []
        self.fds: list[int] = []  # while they are open the memory is this process's to read
        finalize(self, _free, self._reserved, self._size, self.fds, holds).atexit = False

    @classmethod
    def made(cls, nbytes: int) -> Self:
        """Returns a region with memory of its own, which is zero and may be written. Raises OSError."""
        found, size = cls(nbytes, holds=False), round_up(nbytes)
        found._map([size], [promised_memfd(size)], writable=True)
        fill(found.fds[0], size)  # without room this is an error, and a later access is a signal
        return found

    def fill(self, sizes: Sequence[int], fds: Sequence[int]) -> None:
        """Maps segments of these sizes, to be read. Takes the descriptors. Raises NotASegment, RolledBack, OSError."""
        self._map(sizes, fds, writable=False)

    def _map(self, sizes: Sequence[int], fds: Sequence[int], *, writable: bool) -> None:
        self.fds += fds
        self.sizes += sizes
        at, left = self.first, round_up(self.nbytes)
        for size, fd in zip(sizes, fds, strict=True):
            checked_size(fd, size)
            hostmap.map_shared(at, min(size, left), fd, writable=writable)
            at, left = at + size, left - min(size, left)
        if left:
            raise RolledBack(f"{left} bytes of memory too few came")

    def memory(self, offset: int, nbytes: int) -> Any:
        """Returns an array of bytes, which keeps the region. It must not be written, nor read before the bytes came."""
        found = (ctypes.c_ubyte * nbytes).from_address(self.first + offset)
        found.region = self  # type: ignore[attr-defined]
        return found

    def offset_of(self, address: int, nbytes: int) -> int | None:
        """Returns where bytes at this address lie in the region; None if some do not."""
        offset = address - self.first
        return offset if 0 <= offset <= self.nbytes - nbytes else None


def _free(reserved: int, size: int, fds: list[int], holds: bool) -> None:
    hostmap.unreserve(reserved, size)
    for fd in fds if holds else ():
        end_hold(fd)  # also where a child of this process has the descriptor
    close_all(fds)
