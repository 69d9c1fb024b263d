"""Windows of a job's bytes that pass through rings; each is there for as long as it lies in a slot.

Every device of every process is opened before the first window comes, since the order of all tables together numbers
the image's chunks.
"""

from collections.abc import Mapping, Sequence
from threading import Lock

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.errors import UsageError
from gcr.hashing import CHUNK_BYTES
from gcr.hashing.chunks import chunk_count
from gcr.image.chunks.lines import Slots, merged
from gcr.image.chunks.records import Records
from gcr.image.chunks.windows import ImagedLine, LineKey, lines_of
from gcr.image.write.parent import AllocationKey, ChunkNames
from gcr.image.write.writer import ImageWriter
from gcr.memory.addresses import round_up
from gcr.memory.layout import SealedSegment, SealedTable


class Streams(Struct):
    """The rings of a job. `segment_bytes`: the largest piece of host memory that a reader of the image makes."""

    segment_bytes: int
    _tables: dict[int, dict[str, SealedTable]] = field(default_factory=dict)  # by pid and device, as they were opened
    _rings: dict[LineKey, Slots] = field(default_factory=dict)
    _lines: Mapping[LineKey, ImagedLine] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def open(self, table: SealedTable, fds: Sequence[int], slot_bytes: int) -> None:
        """Opens the ring of a table of one device; its bytes lie in no segment. `fds` stay the caller's.

        Raises UsageError, NotASegment, OSError.
        """
        if len(table.devices) != 1 or table.segments:
            raise UsageError("what passes through a ring is of one device, and in no segment")
        (device,) = table.devices
        with self._lock:
            if self._lines or (table.pid, device) in self._rings:
                raise UsageError(f"the bytes of process {table.pid} on device {device} are passing already")
            self._rings[table.pid, device] = Slots(fds, slot_bytes, writable=False)
            self._tables.setdefault(table.pid, {})[device] = self._as_read(table)

    def _as_read(self, table: SealedTable) -> SealedTable:
        """Returns the table with segments for all of its bytes."""
        (device,) = table.devices
        whole, rest = divmod(round_up(max(h.offset + h.spec.size for h in table.handles)), self.segment_bytes)
        sizes = [self.segment_bytes] * whole + [rest] * bool(rest)
        return replace(table, segments=tuple(SealedSegment(device, size) for size in sizes))

    def take(self, writer: ImageWriter, line: LineKey, window: tuple[int, int, int]) -> None:
        """Adds the window that lies in a slot; the slot is free when this returns. Raises UsageError, StoreUnusable."""
        slot, offset, size = window
        if line not in self._rings:
            raise UsageError(f"nothing of process {line[0]} passes on device {line[1]}")
        memory = self._rings[line].slot(slot, size)
        spans = self._numbered()[line].spans(offset, size)
        writer.put((first, memory[at : at + length]) for first, at, length in spans)

    def _numbered(self) -> Mapping[LineKey, ImagedLine]:
        with self._lock:
            self._lines = self._lines or lines_of(self.tables(), CHUNK_BYTES)
            return self._lines

    def tables(self) -> Sequence[SealedTable]:
        """Returns a table for each process, in the image's order."""
        return [merged([*devices.values()]) for devices in self._tables.values()]

    def total_bytes(self) -> int:
        return sum(handle.spec.size for table in self.tables() for handle in table.handles)

    def written(self, writer: ImageWriter) -> ChunkNames:
        """Returns the size of each allocation, and records with its chunks' names.

        Raises RolledBack if a chunk was not brought.
        """
        found: dict[AllocationKey, tuple[int, Records]] = {}
        first = 0
        for table in self.tables():
            for handle in table.handles:
                count = chunk_count(handle.spec.size, CHUNK_BYTES)
                found[table.pid, handle.spec.id] = handle.spec.size, writer.records(first, count)
                first += count
        return found

    def let_go(self) -> None:
        """Releases the rings once everything was taken: the worker may use them for other jobs."""
        for ring in self._rings.values():
            ring.let_go()

    def close(self) -> None:
        for ring in self._rings.values():
            ring.close()
