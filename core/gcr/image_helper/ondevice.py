"""The chunks of a job that lie on devices here while it is on its way from another node, by their names.

An image of each round comes in. A chunk that has the same name at the same place as before need not be read again: its
bytes were compared with that name when they were read. A line is known once all of it is on its device, and from the
moment on at which the next image is looked at, until that is there as well, nothing of the line is.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct, field

from gcr.errors import UsageError
from gcr.hashing.chunks import chunk_count
from gcr.image.chunks.windows import ImagedLine, LineKey
from gcr.image.read.reader import ImageReader
from gcr.memory.layout import SealedHandle

Names = Sequence[bytes]
Window = tuple[int, int]  # offset on the line, and size


class OnDevice(Struct):
    """`_there`: the names of chunks, by line and id of the allocation. `_coming`: of lines that are not whole yet."""

    _there: dict[LineKey, Mapping[int, Names]] = field(default_factory=dict)
    _coming: dict[LineKey, Mapping[int, Names]] = field(default_factory=dict)

    def lacking(self, reader: ImageReader, key: LineKey, kept: Collection[int], most: int) -> list[Window]:
        """Returns the windows of a line that must be read. `kept`: ids of allocations that lie there still.

        Raises UsageError for a line that the image has not, Damaged.
        """
        if key not in reader.lines:
            raise UsageError(f"image {reader.name} has nothing of process {key[0]} on device {key[1]}")
        there, now = self._there.pop(key, {}), _names(reader, key)
        self._coming[key] = {handle.spec.id: names for handle, names in now}
        runs = [
            (handle.offset + at, size)
            for handle, names in sorted(now, key=lambda each: each[0].offset)
            for at, size in _differing(
                there.get(handle.spec.id, ()) if handle.spec.id in kept else (),
                names,
                handle.spec.size,
                reader.manifest.chunk_bytes,
            )
        ]
        return [*_windows(runs, reader.lines[key], most)]

    def brought(self, pid: int, device: str) -> None:
        """Notes that a line is on its device, as the image has it that was looked at last. Raises UsageError."""
        if (pid, device) not in self._coming:
            raise UsageError(f"nothing was lacking of process {pid} on device {device}")
        self._there[pid, device] = self._coming.pop((pid, device))


def _names(reader: ImageReader, key: LineKey) -> list[tuple[SealedHandle, Names]]:
    """Returns the allocations of a line with the names of their chunks."""
    references, first = reader.store.images.references(reader.manifest), 0
    found = list[tuple[SealedHandle, Names]]()
    for process in reader.manifest.processes:
        for handle in process.table.handles:
            end = first + chunk_count(handle.spec.size, reader.manifest.chunk_bytes)
            if (process.table.pid, handle.device) == key:
                found.append((handle, references.names(first, end)))
            first = end
    return found


def _differing(before: Names, now: Names, size: int, chunk_bytes: int) -> Iterator[Window]:
    """Yields the runs of chunks with other names than before: offset in the allocation, and size."""
    if len(before) != len(now):
        yield 0, size
        return
    begin: int | None = None
    for number, (old, new) in enumerate(zip(before, now, strict=True)):
        if old != new and begin is None:
            begin = number
        if old == new and begin is not None:
            yield begin * chunk_bytes, (number - begin) * chunk_bytes
            begin = None
    if begin is not None:
        yield begin * chunk_bytes, size - begin * chunk_bytes


def _windows(runs: Sequence[Window], line: ImagedLine, most: int) -> Iterator[Window]:
    """Yields runs of whole chunks as windows of at most `most` bytes."""
    if most < line.chunk_bytes:
        raise UsageError(f"a window of {most} bytes has no room for a chunk of {line.chunk_bytes}")
    step = most - most % line.chunk_bytes
    for begin, size in runs:
        for at in range(0, size, step):
            yield begin + at, min(step, size - at)
