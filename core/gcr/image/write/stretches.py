"""Stretches: chunks that follow each other in an image and in memory, and are named in one call."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from msgspec import Struct

from gcr.hashing import DIGEST_BYTES
from gcr.image.chunks.chunk import NAME_BYTES, Chunk
from gcr.image.chunks.entry import padded

Piece = tuple[int, memoryview]  # a chunk's number in the image, and its bytes
NamedPiece = tuple[Piece, Chunk]


class Stretch(Struct, frozen=True):
    """`first`: the number of the first chunk · `sizes`: bytes of each, one behind the other in `memory`

    stored: bytes of all in a pack · hashed: their device hashes are wanted
    """

    first: int
    memory: memoryview
    sizes: Sequence[int]
    stored: int
    hashed: bool = True

    @property
    def starts(self) -> Sequence[int]:
        return [*accumulate(self.sizes[:-1], initial=0)]

    def pieces(self) -> Sequence[memoryview]:
        return [self.memory[at : at + size] for at, size in zip(self.starts, self.sizes, strict=True)]


class NamedStretch(Struct, frozen=True):
    """`names`, `digests`: of all chunks, one behind the other; there may be no digests."""

    of: Stretch
    names: bytes
    digests: bytes

    def name(self, at: int) -> bytes:
        return self.names[at * NAME_BYTES : (at + 1) * NAME_BYTES]

    def digests_of(self, at: int, end: int) -> bytes:
        return self.digests[at * DIGEST_BYTES : end * DIGEST_BYTES]

    def piece(self, at: int, start: int) -> NamedPiece:
        """Returns one chunk, which begins at `start` in the memory."""
        data = self.of.memory[start : start + self.of.sizes[at]]
        return (self.of.first + at, data), Chunk(self.name(at), self.digests_of(at, at + 1))


def stretches(
    first: int, memory: memoryview, sizes: Iterable[int], most: int, hashed: bool = True
) -> Iterator[Stretch]:
    """Yields chunks that follow each other in stretches of `most` bytes or fewer in a pack, or of one chunk.

    sizes: of the chunks in the memory, in bytes · hashed: as a stretch has it
    """
    begin, end, total, some = 0, 0, 0, list[int]()
    for size in sizes:
        stored = padded(size)
        if some and total + stored > most:
            yield Stretch(first, memory[begin:end], some, total, hashed)
            first, begin, total, some = first + len(some), end, 0, []
        some.append(size)
        total, end = total + stored, end + size
    if some:
        yield Stretch(first, memory[begin:end], some, total, hashed)
