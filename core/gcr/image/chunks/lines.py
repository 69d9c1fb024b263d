"""The bytes of a staged process as an image's writer and reader see them: one line for each device.

A checkpoint stages sealed tables of each process, one for each device, and the device's segments (gcr.memory.layout).
An image has one table of the whole process. `merged` makes that table of the others, `by_device` the others of it.
"""

import ctypes
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from gcr.errors import UsageError
from gcr.memory import hostmap
from gcr.memory.addresses import HUGE_PAGE
from gcr.memory.layout import SealedHandle, SealedTable
from gcr.memory.memfiles import checked_size, end_hold, filled_memfd, hold_still
from gcr.memory.partial import PartialTable


def owned(own: ExitStack, fd: int) -> int:
    """Returns the descriptor; it is closed with `own`."""
    own.callback(os.close, fd)
    return fd


class Mapped:
    """Segments at consecutive addresses.

    Segments that are mapped to be read keep their bytes until `close`, `let_go` or the end of this process.

    own: closed with it, such as descriptors
    """

    def __init__(self, sizes: Sequence[int], fds: Sequence[int], writable: bool) -> None:
        """Maps the segments `fds` of these sizes, in order. The descriptors stay the caller's. Raises OSError."""
        with ExitStack() as own:
            self._held = [] if writable else [owned(own, hold_still(fd)) for fd in fds]
            self._size = sum(sizes) + HUGE_PAGE
            self._reserved = hostmap.reserve(self._size)
            own.callback(hostmap.unreserve, self._reserved, self._size)
            self._first = -(-self._reserved // HUGE_PAGE) * HUGE_PAGE  # segments may be of huge pages
            at = self._first
            for fd, size in zip(self._held or fds, sizes, strict=True):
                hostmap.map_shared(at, size, fd, writable=writable)
                at += size
            self.own = own.pop_all()

    def view(self, offset: int, size: int) -> memoryview:
        """Returns bytes where they lie; they must not be used after `close`. Raises UsageError outside the segments."""
        if not 0 <= offset <= offset + size <= self._size - HUGE_PAGE:
            raise UsageError(f"there are no {size} bytes from {offset} on")
        return memoryview((ctypes.c_ubyte * size).from_address(self._first + offset)).cast("B")

    def let_go(self) -> None:
        """Releases the hold; the owner of the segments may overwrite them. They stay mapped."""
        for fd in self._held:
            end_hold(fd)
        self._held = []

    def close(self) -> None:
        self._held, self._size = [], 0
        self.own.close()


class Slots(Mapped):
    """Memory of another process, in slots of one size, through which an image's bytes pass."""

    def __init__(self, fds: Sequence[int], slot_bytes: int, writable: bool = True) -> None:
        """Maps `fds` one behind the other. The descriptors stay the caller's. Raises NotASegment, OSError."""
        self.slot_bytes = slot_bytes
        self._entered = set[int]()
        super().__init__([checked_size(fd, None) for fd in fds], fds, writable)

    def slot(self, number: int, size: int) -> memoryview:
        """Returns the first `size` bytes of a slot. Raises UsageError for a slot that does not exist or is smaller."""
        if size > self.slot_bytes:
            raise UsageError(f"a slot of {self.slot_bytes} bytes has no room for {size}")
        return self.view(number * self.slot_bytes, size)

    def entered(self, number: int, size: int) -> memoryview:
        """Returns as `slot`. Enters the pages into the page tables first: a fault for each would take longer."""
        memory = self.slot(number, size)
        if number not in self._entered:
            hostmap.populate(self._first + number * self.slot_bytes, size)
            self._entered.add(number)
        return memory


class Line(Mapped):
    """The segments of one device's bytes."""

    def __init__(self, table: SealedTable, fds: Sequence[int], writable: bool) -> None:
        """Maps the segments `fds` of a table of one device. The descriptors stay the caller's. Raises OSError."""
        self.table = table
        super().__init__([part.size for part in table.segments], fds, writable)

    def allocation(self, handle: SealedHandle) -> memoryview:
        """Returns the bytes of an allocation where they lie; they must not be used after `close`."""
        return self.view(handle.offset, handle.spec.size)


class StagedLine(Line):
    """One device's bytes of a process, in the segments of a checkpoint."""

    def __init__(self, partial: PartialTable, fds: Sequence[int]) -> None:
        """Raises NotASegment, OSError."""
        self.chunks = partial.chunks
        for fd, part in zip(fds, partial.table.segments, strict=True):
            checked_size(fd, part.size)
        super().__init__(partial.table, fds, writable=False)


class FreshLine(Line):
    """One device's bytes of a process, in new segments that are filled from an image."""

    def __init__(self, table: SealedTable) -> None:
        """Makes the segments. Raises OSError, with ENOSPC if there is no host memory for them."""
        with ExitStack() as own:
            self._made = [owned(own, filled_memfd(part.size)) for part in table.segments]
            super().__init__(table, self._made, writable=True)
            self.own.callback(own.pop_all().close)

    def staged(self) -> list[int]:
        """Returns new descriptors of the sealed table and the segments, as a checkpoint stages them. Raises OSError."""
        return [self.table.to_memfd(), *map(os.dup, self._made)]


def merged(tables: Sequence[SealedTable]) -> SealedTable:
    """Returns the table of a whole process, made of those of its devices."""
    return replace(
        tables[0],
        handles=tuple(handle for table in tables for handle in table.handles),
        mappings=tuple(mapping for table in tables for mapping in table.mappings),
        segments=tuple(segment for table in tables for segment in table.segments),
    )


def by_device(table: SealedTable) -> Sequence[SealedTable]:
    """Returns the tables that it was merged of, one for each device."""
    devices = [*(part.device for part in table.segments), *(handle.device for handle in table.handles)]
    return [_of_device(table, device) for device in _unique(devices)]


def _of_device(table: SealedTable, device: str) -> SealedTable:
    handles = tuple(handle for handle in table.handles if handle.device == device)
    ids = {handle.spec.id for handle in handles}
    return replace(
        table,
        handles=handles,
        mappings=tuple(mapping for mapping in table.mappings if mapping.id in ids),
        segments=tuple(part for part in table.segments if part.device == device),
    )


def _unique(names: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(names)
