"""Windows: runs of whole chunks of one process on one device, which pass through a slot of memory.

The bytes of a process on a device form one line (gcr.memory.layout). The chunks of an allocation begin at its first
byte on the line. There may be gaps between allocations.
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
        """Makes the line of allocations; each comes with the number of its first chunk's reference."""
        line = cls(chunk_bytes)
        for handle, first in sorted(handles, key=lambda each: each[0].offset):
            line._starts.append(handle.offset)
            line._sizes.append(handle.spec.size)
            line._firsts.append(first)
        return line

    @property
    def size(self) -> int:
        """Returns how many bytes all allocations have."""
        return sum(self._sizes)

    def windows(self, most: int) -> Iterator[tuple[int, int]]:
        """Yields offset and size of windows that together have every chunk once; none has a gap.

        A window has `most` bytes or fewer. Raises UsageError if a chunk does not fit into one.
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
        """Returns for each chunk of a window the number of its reference, its offset in the window, and its size.

        Raises UsageError for bytes that are no whole chunks.
        """
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
    """Returns the lines of all processes and devices; references are counted as docs/image-format.md orders them."""
    found: dict[LineKey, list[tuple[SealedHandle, int]]] = {}
    first = 0
    for table in tables:
        for handle in table.handles:
            found.setdefault((table.pid, handle.device), []).append((handle, first))
            first += -(-handle.spec.size // chunk_bytes)
    return {key: ImagedLine.of(handles, chunk_bytes) for key, handles in found.items()}
