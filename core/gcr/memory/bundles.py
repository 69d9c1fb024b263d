"""The descriptors of a staged process: for each device a table, then the segments that the table names.

| table of A | segment | segment | table of B | segment | ...
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from gcr.errors import RolledBack
from gcr.memory.layout import SealedSegment
from gcr.protocol.seqpacket import close_all


class Table(Protocol):
    """A table that names segments."""

    @property
    def segments(self) -> Sequence[SealedSegment]: ...


T = TypeVar("T", bound=Table)


class Bundle(Struct, Generic[T], frozen=True):
    """The table of one device. The bundle owns `fds`: the table's descriptor, then those of its segments."""

    table: T
    fds: Sequence[int]

    @property
    def segments(self) -> Sequence[int]:
        """The descriptors of the segments, in the table's order."""
        return self.fds[1:]

    def close(self) -> None:
        close_all(self.fds)


def bundled(fds: Sequence[int], read: Callable[[int], T]) -> list[Bundle[T]]:
    """Returns one bundle for each table, which `read` reads. Takes the descriptors, and closes all where it raises.

    Raises RolledBack where segments are missing, and what `read` raises; a surplus descriptor is read as a table.
    """
    try:
        return [*_bundles(fds, read)]
    except BaseException:
        close_all(fds)
        raise


def _bundles(fds: Sequence[int], read: Callable[[int], T]) -> Iterator[Bundle[T]]:
    at = 0
    while at < len(fds):
        table = read(fds[at])
        end = at + 1 + len(table.segments)
        if end > len(fds):
            raise RolledBack(f"{len(fds)} descriptors were staged, the tables name {end}")
        yield Bundle(table, fds[at:end])
        at = end
