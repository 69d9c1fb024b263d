"""The chunks of a job that lie on devices here while it is on its way from another node, by their names.

An image of each round comes in. A chunk that has the same name at the same place as before need not be read again: its
bytes were compared with that name when they were read. A line is known once all of it is on its device, and from the
moment on at which the next image is looked at, until that is there as well, nothing of the line is.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct, field

from gcr.errors import UsageError
from gcr.hashing.chunks import chunk_count
from gcr.image.chunks.records import Records, Run
from gcr.image.chunks.windows import LineKey, windows_of
from gcr.image.read.reader import ImageReader
from gcr.memory.layout import SealedHandle

NEAR_BYTES = (
    256 << 10
)  # between two chunks that are read together, with what lies between: as soon done as another window

Window = tuple[int, int]  # offset on the line, and size
Named = Mapping[int, Records]  # by id of the allocation: records with the names of its chunks


class OnDevice(Struct):
    """`_there`: the chunks by line. `_coming`: those of lines that are not whole yet."""

    _there: dict[LineKey, Named] = field(default_factory=dict)
    _coming: dict[LineKey, Named] = field(default_factory=dict)

    def lacking(self, reader: ImageReader, key: LineKey, kept: Collection[int], most: int) -> list[Window]:
        """Returns the windows of a line that must be read. `kept`: ids of allocations that lie there still.

        Raises UsageError for a line that the image has not, Damaged.
        """
        if key not in reader.lines:
            raise UsageError(f"image {reader.name} has nothing of process {key[0]} on device {key[1]}")
        there, now = self._there.pop(key, {}), _named(reader, key)
        self._coming[key] = {handle.spec.id: records for handle, records in now}
        known = {id: records for id, records in there.items() if id in kept}
        chunk_bytes = reader.manifest.chunk_bytes
        parts = (
            (handle.offset + at, size)
            for handle, records in sorted(now, key=lambda each: each[0].offset)
            for at, size in _parts(known.get(handle.spec.id), records, handle.spec.size, chunk_bytes)
        )
        return [*windows_of(parts, chunk_bytes, most)]

    def brought(self, pid: int, device: str) -> None:
        """Notes that a line is on its device, as the image has it that was looked at last. Raises UsageError."""
        if (pid, device) not in self._coming:
            raise UsageError(f"nothing was lacking of process {pid} on device {device}")
        self._there[pid, device] = self._coming.pop((pid, device))


def _named(reader: ImageReader, key: LineKey) -> list[tuple[SealedHandle, Records]]:
    """Returns the allocations of a line with the references of their chunks."""
    references, first = reader.store.images.references(reader.manifest), 0
    found = list[tuple[SealedHandle, Records]]()
    for process in reader.manifest.processes:
        for handle in process.table.handles:
            end = first + chunk_count(handle.spec.size, reader.manifest.chunk_bytes)
            if (process.table.pid, handle.device) == key:
                found.append((handle, references.part(first, end)))
            first = end
    return found


def _parts(before: Records | None, now: Records, size: int, chunk_bytes: int) -> Iterator[Window]:
    """Yields the parts of an allocation that are not there: offset in it, and size."""
    if before is None or len(before) != len(now):
        yield 0, size
        return
    for first, end in _joined(now.other_names(0, len(now), before, 0), NEAR_BYTES // chunk_bytes):
        yield first * chunk_bytes, min(end * chunk_bytes, size) - first * chunk_bytes


def _joined(runs: Iterable[Run], between: int) -> Iterator[Run]:
    """Yields ascending runs of chunks; those with `between` chunks or fewer between them are one."""
    last: Run | None = None
    for first, end in runs:
        if last and first - last[1] <= between:
            last = last[0], end
            continue
        if last:
            yield last
        last = first, end
    if last:
        yield last
