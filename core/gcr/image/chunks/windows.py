"""Windows: runs of whole chunks of one process on one device, as they pass through a slot of memory.

The bytes of a process on a device form one line (gcr.memory.layout). The chunks of an allocation begin at its first
byte on the line. Between two allocations may be a gap.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field

from gcr.errors import UsageError
from gcr.image.chunks.chunk import cut
from gcr.memory.layout import SealedHandle, SealedTable

LineKey = tuple[int, str]  # pid, and UUID of the device


class ImagedLine(Struct):
    """The chunks of one process on one device. Offsets and sizes are bytes."""

    chunk_bytes: int
    _starts: list[int] = field(default_factory=list)  # of allocations, rising
    _sizes: list[int] = field(default_factory=list)
    _firsts: list[int] = field(default_factory=list)  # the reference of an allocation's first chunk

    @classmethod
    def of(cls, handles: Iterable[tuple[SealedHandle, int]], chunk_bytes: int) -> "ImagedLine":
        """`handles`: each with the number of the reference of its first chunk."""
        line = cls(chunk_bytes)
        for handle, first in sorted(handles, key=lambda each: each[0].offset):
            line._starts.append(handle.offset)
            line._sizes.append(handle.spec.size)
            line._firsts.append(first)
        return line

    @property
    def size(self) -> int:
        """Of all allocations."""
        return sum(self._sizes)

    def windows(self, most: int) -> Iterator[tuple[int, int]]:
        """Offset and size of windows of at most `most` bytes that have every chunk once; none has a gap.

        Raises UsageError where a chunk does not fit into one.
        """
        if most < self.chunk_bytes:
            raise UsageError(f"a window of {most} bytes has no room for a chunk of {self.chunk_bytes}")
        begin = end = 0
        for start, size in zip(self._starts, self._sizes, strict=True):
            if start != end:
                if end > begin:
                    yield begin, end - begin
                begin = end = start
            for _, length in cut(size, self.chunk_bytes):
                if end + length - begin > most:
                    yield begin, end - begin
                    begin = end
                end += length
        if end > begin:
            yield begin, end - begin

    def chunks(self, offset: int, size: int) -> list[tuple[int, int, int]]:
        """Of a window: number of the reference, place in the window, bytes. Raises UsageError for what is no window."""
        found: list[tuple[int, int, int]] = []
        at = offset
        index = bisect_right(self._starts, offset) - 1
        while at < offset + size:
            start = self._starts[index] if 0 <= index < len(self._starts) else -1
            number, within = divmod(at - start, self.chunk_bytes)
            if start < 0 or within or not start <= at < start + self._sizes[index]:
                raise UsageError(f"no chunk of the image begins at {at} of the line")
            length = min(self.chunk_bytes, start + self._sizes[index] - at)
            found.append((self._firsts[index] + number, at - offset, length))
            at += length
            index += at == start + self._sizes[index]
        if at != offset + size or not size:
            raise UsageError(f"{size} bytes from {offset} on are no whole chunks of the image")
        return found


def lines_of(tables: Iterable[SealedTable], chunk_bytes: int) -> Mapping[LineKey, ImagedLine]:
    """Of each process on each device; references are counted as an image has them (docs/image-format.md)."""
    found: dict[LineKey, list[tuple[SealedHandle, int]]] = {}
    first = 0
    for table in tables:
        for handle in table.handles:
            found.setdefault((table.pid, handle.device), []).append((handle, first))
            first += -(-handle.spec.size // chunk_bytes)
    return {key: ImagedLine.of(handles, chunk_bytes) for key, handles in found.items()}
