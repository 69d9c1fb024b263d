"""Windows: runs of whole chunks of one process on one device, which pass through a slot of memory.

The bytes of a process on a device form one line (gcr.memory.layout). The chunks of an allocation begin at its first
byte on the line. There may be gaps between allocations.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from gcr.errors import UsageError
from gcr.memory.layout import SealedHandle, SealedTable
from gcr.memory.pieces import Cut, NotInPieces, Pieces

LineKey = tuple[int, str]  # pid, and UUID of the device


class ImagedLine(Struct, frozen=True):
    """The chunks of one process on one device. `firsts`: the reference of each allocation's first chunk."""

    chunk_bytes: int
    allocations: Pieces
    firsts: Sequence[int]

    @classmethod
    def of(cls, handles: Iterable[tuple[SealedHandle, int]], chunk_bytes: int) -> "ImagedLine":
        """Makes the line of allocations; each comes with the number of its first chunk's reference."""
        placed = sorted(handles, key=lambda each: each[0].offset)
        starts = [handle.offset for handle, _ in placed]
        ends = [handle.offset + handle.spec.size for handle, _ in placed]
        return cls(chunk_bytes, Pieces(starts, ends), [first for _, first in placed])

    @property
    def size(self) -> int:
        """Returns how many bytes all allocations have."""
        return sum(self.allocations.ends) - sum(self.allocations.starts)

    def windows(self, most: int) -> Iterator[tuple[int, int]]:
        """Yields offset and size of windows that together have every chunk once; none has a gap.

        A window has `most` bytes or fewer. Raises UsageError if a chunk does not fit into one.
        """
        parts = zip(self.allocations.starts, self.allocations.ends, strict=True)
        return windows_of(((start, end - start) for start, end in parts), self.chunk_bytes, most)

    def spans(self, offset: int, size: int) -> list[tuple[int, int, int]]:
        """Returns what a window has of each allocation: number of the first chunk's reference, offset, and size.

        The offset is that in the window. Raises UsageError for bytes that are no whole chunks.
        """
        try:
            cuts = [*self.allocations.cuts([(offset, size)])]
        except NotInPieces as error:
            raise UsageError(f"of {size} bytes from {offset} on not all are in the image: {error}") from error
        if not cuts or any(cut.at % self.chunk_bytes for cut in cuts) or not self._ends_a_chunk(cuts[-1]):
            raise UsageError(f"{size} bytes from {offset} on are no whole chunks of the image")
        return [(self.firsts[cut.piece] + cut.at // self.chunk_bytes, cut.done, cut.size) for cut in cuts]

    def _ends_a_chunk(self, last: Cut) -> bool:
        length = self.allocations.ends[last.piece] - self.allocations.starts[last.piece]
        end = last.at + last.size
        return end == length or end % self.chunk_bytes == 0


def windows_of(parts: Iterable[tuple[int, int]], chunk_bytes: int, most: int) -> Iterator[tuple[int, int]]:
    """Yields offset and size of windows that together have the parts of a line, and no byte beside them.

    parts: offset and size, ascending; each begins and ends with a chunk. Those that touch share a window.
    A window has `most` bytes or fewer. Raises UsageError if a chunk does not fit into one.
    """
    if most < chunk_bytes:
        raise UsageError(f"a window of {most} bytes has no room for a chunk of {chunk_bytes}")
    begin = end = 0
    for start, size in parts:
        if start != end:
            if end > begin:
                yield begin, end - begin
            begin = end = start
        after = start + size
        while end < after:
            room = most - (end - begin)
            if room < min(chunk_bytes, after - end):
                yield begin, end - begin
                begin, room = end, most
            end = after if after - end <= room else end + room // chunk_bytes * chunk_bytes
    if end > begin:
        yield begin, end - begin


def lines_of(tables: Iterable[SealedTable], chunk_bytes: int) -> Mapping[LineKey, ImagedLine]:
    """Returns the lines of all processes and devices; references are counted as docs/image-format.md orders them."""
    found: dict[LineKey, list[tuple[SealedHandle, int]]] = {}
    first = 0
    for table in tables:
        for handle in table.handles:
            found.setdefault((table.pid, handle.device), []).append((handle, first))
            first += -(-handle.spec.size // chunk_bytes)
    return {key: ImagedLine.of(handles, chunk_bytes) for key, handles in found.items()}
