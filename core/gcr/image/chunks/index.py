"""The index of a pack, and runs of its chunks: those that lie one behind the other are read and compared at once."""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, starmap

from msgspec import Struct

from gcr.hashing.chunks import MAX_CHUNK_BYTES
from gcr.image.chunks.chunk import NAME_BYTES
from gcr.image.chunks.entry import BLOCK, MOST_BLOCKS, Entry, padded
from gcr.image.chunks.records import Records


class Index(Records):
    """The records of a pack's chunks, in the order in which they lie there.

    sizes: of the chunks, in bytes · borders: the block where each begins, and the one behind the last
    """

    def __init__(self, records: bytes, record: struct.Struct, end: int | None) -> None:
        """Raises ValueError for records that no pack has.

        end: where the chunks end in the file, in bytes; None: they are compressed, and do not lie at their blocks
        """
        super().__init__(records, record.size)
        self._record = record
        self.sizes = self.column(NAME_BYTES + 4)
        borders = _borders(self.sizes)
        if borders[-1] >= MOST_BLOCKS:
            raise ValueError("no pack is so large")
        self.borders = array("I", borders)
        if self.column(NAME_BYTES) != self.borders[:-1] or (end is not None and borders[-1] * BLOCK != end):
            raise ValueError("a chunk is not behind the one before")

    def find(self, block: int) -> int | None:
        """Returns the number of the chunk that begins at this block."""
        borders = self.borders
        number = bisect_left(borders, block)
        return number if number < len(borders) - 1 and borders[number] == block else None

    def entries(self, first: int, end: int) -> Sequence[Entry]:
        return [*starmap(Entry, self._record.iter_unpack(self.packed(first, end)))]

    def all(self) -> "Run":
        return Run(self, 0, len(self))


class Run(Struct, frozen=True):
    """Chunks that lie one behind the other in a pack, by their numbers in its index."""

    index: Index
    first: int
    end: int

    @property
    def block(self) -> int:
        """Returns the block where the first one begins."""
        return self.index.borders[self.first]

    @property
    def size(self) -> int:
        """Returns the bytes of the chunks."""
        return sum(self.sizes)

    @property
    def stored_bytes(self) -> int:
        """Returns how many bytes the chunks take in the pack."""
        return (self.index.borders[self.end] - self.block) * BLOCK

    @property
    def names(self) -> Sequence[bytes]:
        return self.index.names(self.first, self.end)

    @property
    def entries(self) -> Sequence[Entry]:
        return self.index.entries(self.first, self.end)

    @property
    def sizes(self) -> Sequence[int]:
        """Returns the bytes of each chunk."""
        return self.index.sizes[self.first : self.end]

    @property
    def starts(self) -> Sequence[int]:
        """Returns the offset of each chunk from the first one in the pack, in bytes."""
        first = self.block
        return [(border - first) * BLOCK for border in self.index.borders[self.first : self.end]]

    def chunks(self, blocks: memoryview) -> Sequence[memoryview]:
        """Returns the bytes of each chunk; in `blocks` the chunks lie as in the pack."""
        return [blocks[at : at + size] for at, size in zip(self.starts, self.sizes, strict=True)]

    def pieces(self, blocks: memoryview) -> Sequence[memoryview]:
        """Returns the bytes of all chunks, as one piece unless a chunk but the last has a rest of a block behind it."""
        size, last = self.size, self.index.sizes[self.end - 1]
        if self.stored_bytes - size == padded(last) - last:
            return [blocks[:size]]
        return self.chunks(blocks)

    def groups(self, most: int) -> Iterator["Run"]:
        """Yields all chunks in runs of `most` bytes or fewer in the pack, or of one chunk."""
        borders, first = self.index.borders, self.first
        while first < self.end:
            end = bisect_right(borders, borders[first] + most // BLOCK, first, self.end + 1) - 1
            yield Run(self.index, first, max(first + 1, end))
            first = max(first + 1, end)


def _borders(sizes: "array[int]") -> Sequence[int]:
    """Returns the block where each chunk begins, and the one behind the last. Raises ValueError for a wrong size."""
    alike = sizes == sizes[:1] * len(sizes)  # nearly always: then nothing is done for each chunk
    every = {*sizes[:1]} if alike else {*sizes}
    if not 0 < min(every, default=1) <= max(every, default=1) <= MAX_CHUNK_BYTES:
        raise ValueError("no chunk has such a size")
    blocks = {size: padded(size) // BLOCK for size in every}
    if sizes and alike:
        step = blocks[sizes[0]]
        return range(1, 2 + step * len(sizes), step)
    return [*accumulate(map(blocks.__getitem__, sizes), initial=1)]
