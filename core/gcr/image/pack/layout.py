"""The places of a compressed pack's chunks: a chunk takes fewer bytes than it has, and chunks lie in any order.

    24 bytes a chunk, in the order of the index: block where it lies (u32) | bytes there (u32) | begin of digest (16)

References and the index name the block where a chunk would lie if nothing were compressed. So a chunk has its place
before it is compressed. The digest is of the bytes there. With as many as the chunk has they are the chunk itself.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct as Format
from threading import Lock

from msgspec import Struct
from msgspec.structs import replace

from gcr.image.chunks.entry import BLOCK, Entry, as_stored, padded
from gcr.image.chunks.index import Index, Run

LAID = Format("<II16s")  # of one chunk: block, bytes, digest
DIGEST_BYTES = 16


class Laid(Struct, frozen=True):
    """A run of chunks as it lies in the pack, one behind the other. `entries`: with the sizes that they have there."""

    entries: Sequence[Entry]
    digests: Sequence[bytes]

    def chunks(self, blocks: memoryview) -> Sequence[memoryview]:
        """Returns the bytes of each chunk as stored; `blocks` has the run as it lies in the pack."""
        pieces = as_stored(self.entries, blocks)
        return [piece[: entry.size] for entry, piece in zip(self.entries, pieces, strict=True)]


class NewLayout:
    """The places of the chunks of a compressed pack that is written. Thread-safe. `end`: the next free block."""

    def __init__(self) -> None:
        self.end = 1  # the header has the first block
        self._lock, self._laid = Lock(), dict[int, bytes]()  # by block in the index

    def lay(self, entries: Sequence[Entry], digests: Sequence[bytes]) -> int:
        """Gives chunks of these sizes their place, one behind the other. Returns the first block."""
        with self._lock:
            first = self.end
            for entry, digest in zip(entries, digests, strict=True):
                self._laid[entry.block] = LAID.pack(self.end, entry.size, digest)
                self.end += padded(entry.size) // BLOCK
        return first

    def records(self, blocks: Iterable[int]) -> bytes:
        """Returns the records of chunks, by their blocks in the index."""
        return b"".join(map(self._laid.__getitem__, blocks))


class Layout:
    """The places of the chunks of a compressed pack."""

    def __init__(self, records: bytes, index: Index, end: int) -> None:
        """`end`: where the chunks end in the file, in bytes. Raises ValueError for records that no pack has."""
        words = memoryview(records).cast("I")
        self._records = records
        self._blocks, self._sizes = (array("I", words[at :: LAID.size // 4].tobytes()) for at in (0, 1))
        next_block = 1
        for number in sorted(range(len(self._blocks)), key=self._blocks.__getitem__):
            if self._blocks[number] != next_block:
                raise ValueError("a chunk does not lie behind another")
            next_block += padded(self._sizes[number]) // BLOCK
        if next_block * BLOCK != end or len(self._blocks) != len(index):
            raise ValueError("its chunks do not end with it")
        if any(not 0 < size <= plain for size, plain in zip(self._sizes, index.sizes, strict=True)):
            raise ValueError("a chunk is longer when compressed")

    def laid(self, run: Run) -> Laid:
        """Returns a run that `runs` has yielded, as it lies in the pack."""
        sizes = self._sizes[run.first : run.end]
        entries = [entry._replace(size=size) for entry, size in zip(run.entries, sizes, strict=True)]
        records = memoryview(self._records)[run.first * LAID.size : run.end * LAID.size]
        return Laid(entries, [digest for _, _, digest in LAID.iter_unpack(records)])

    def extent(self, run: Run) -> tuple[int, int]:
        """Returns the block where such a run begins in the pack, and how many bytes it takes there."""
        return self._blocks[run.first], sum(map(padded, self._sizes[run.first : run.end]))

    def runs(self, run: Run) -> Iterator[Run]:
        """Yields the chunks in runs that lie one behind the other in the pack as well."""
        first = run.first
        for number in range(run.first + 1, run.end + 1):
            before = number - 1
            behind = self._blocks[before] + padded(self._sizes[before]) // BLOCK
            if number == run.end or self._blocks[number] != behind:
                yield replace(run, first=first, end=number)
                first = number
