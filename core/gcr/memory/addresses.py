"""Addresses for arena segments: reserved without memory, handed out first fit, given back.

A segment takes as many addresses as it has bytes, so small segments share a reservation. Where all are in use the
module makes another reservation; only the kernel can refuse one.
"""

from bisect import bisect_left
from threading import Lock

from msgspec import Struct, field

from gcr.errors import NoRoom
from gcr.memory import hostmap

HUGE_PAGE = 2 << 20
LEAST_BYTES = 1 << 34  # the least size of a reservation; addresses cost nothing


class Reservation(Struct, frozen=True):
    """A stretch from the kernel. Segments begin at multiples of a huge page, so one huge page stays unused."""

    address: int
    size: int

    def usable(self) -> tuple[int, int]:
        """Returns the first address, and the one after the last."""
        begin = round_up(self.address)
        return begin, begin + self.size - HUGE_PAGE


class Addresses(Struct):
    """The reservations. Thread-safe. `_free`: stretches [begin, end), in order and never adjacent."""

    _reserved: list[Reservation] = field(default_factory=list)
    _free: list[tuple[int, int]] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def take(self, size: int) -> int:
        """Returns the first of `size` addresses, at a multiple of a huge page. Raises NoRoom."""
        wanted = round_up(size)
        with self._lock:
            index = self._first_fit(wanted)
            if index is None:
                self._reserve(wanted)
                index = self._first_fit(wanted)
                assert index is not None
            begin, end = self._free.pop(index)
            if begin + wanted < end:
                self._free.insert(index, (begin + wanted, end))
            return begin

    def give_back(self, address: int, size: int) -> None:
        """Unmaps and takes back these addresses; does nothing after `close`. Raises OSError."""
        wanted = round_up(size)
        with self._lock:
            if self._reserved:
                hostmap.blank(address, wanted)
                self._insert(address, address + wanted)

    def close(self) -> None:
        """Gives all addresses back to the kernel. Raises OSError."""
        with self._lock:
            reserved, self._reserved, self._free = self._reserved, [], []
            for each in reserved:
                hostmap.unreserve(each.address, each.size)

    def _first_fit(self, size: int) -> int | None:
        return next((index for index, (begin, end) in enumerate(self._free) if end - begin >= size), None)

    def _reserve(self, size: int) -> None:
        wanted = max(size, LEAST_BYTES) + HUGE_PAGE
        try:
            made = Reservation(hostmap.reserve(wanted), wanted)
        except OSError as error:
            raise NoRoom("no address space for the arena", missing=size) from error
        self._reserved.append(made)
        self._insert(*made.usable())

    def _insert(self, begin: int, end: int) -> None:
        """Adds a stretch, joined with its neighbours."""
        index = bisect_left(self._free, (begin, end))
        if index < len(self._free) and self._free[index][0] == end:
            end = self._free.pop(index)[1]
        if index and self._free[index - 1][1] == begin:
            begin = self._free.pop(index - 1)[0]
            index -= 1
        self._free.insert(index, (begin, end))


def round_up(nbytes: int) -> int:
    """Rounds up to whole huge pages."""
    return -(-nbytes // HUGE_PAGE) * HUGE_PAGE
