"""Stretches: chunks that follow each other in an image and in memory, and are named in one call."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from msgspec import Struct

from gcr.hashing import DIGEST_BYTES
from gcr.image.chunks.chunk import NAME_BYTES, Chunk
from gcr.image.chunks.entry import padded
from gcr.image.disk.bounce import Recycled

_BUFFERS = Recycled()

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


class Source(Protocol):
    """Bytes that are not in this process. Several threads may read at once."""

    def read(self, at: int, into: memoryview) -> None:
        """Reads the bytes from `at` on. Raises GcrError."""
        ...


class Unread(Struct, frozen=True):
    """A stretch of which the bytes lie in a source, from `at` on; `size`: of all. The rest is as a stretch has it."""

    first: int
    source: Source
    at: int
    size: int
    sizes: Sequence[int]
    stored: int

    def brought(self) -> Stretch:
        """Returns the stretch, in memory of its own. Raises as the source does."""
        memory = _BUFFERS.buffer(self.size)
        self.source.read(self.at, memory)
        return Stretch(self.first, memory, self.sizes, self.stored, hashed=False)


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
    for number, begin, some, stored in _cut(sizes, most):
        yield Stretch(first + number, memory[begin : begin + sum(some)], some, stored, hashed)


def unread(first: int, source: Source, sizes: Iterable[int], most: int) -> Iterator[Unread]:
    """Yields the chunks of a source as `stretches` does those of memory."""
    for number, begin, some, stored in _cut(sizes, most):
        yield Unread(first + number, source, begin, sum(some), some, stored)


def _cut(sizes: Iterable[int], most: int) -> Iterator[tuple[int, int, Sequence[int], int]]:
    """Yields for each stretch the number of its first chunk, its begin in bytes, its sizes, and its bytes in a pack."""
    number, begin, total, some = 0, 0, 0, list[int]()
    for size in sizes:
        stored = padded(size)
        if some and total + stored > most:
            yield number, begin, some, total
            number, begin, total, some = number + len(some), begin + sum(some), 0, []
        some.append(size)
        total += stored
    if some:
        yield number, begin, some, total
