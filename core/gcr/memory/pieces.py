"""Pieces of memory, thought of as one line of bytes, and the one walk over stretches of that line.

Segments lie back to back on the line of the arena; allocations have gaps between them where some were freed. A stretch
is an offset on the line and a size. Sizes and offsets are bytes.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from msgspec import Struct


class NotInPieces(ValueError):
    """A stretch has bytes that are in no piece."""


class Cut(Struct, frozen=True, gc=False):
    """Bytes of one stretch in one piece, both by their numbers.

    done: bytes of the stretch before these · at: offset in the piece
    """

    stretch: int
    done: int
    piece: int
    at: int
    size: int


class Pieces(Struct, frozen=True):
    """Pieces by their first byte on the line, and by the one after the last. They rise, and none overlaps another."""

    starts: Sequence[int]
    ends: Sequence[int]

    @classmethod
    def back_to_back(cls, sizes: Iterable[int]) -> "Pieces":
        """Returns pieces of these sizes without gaps, from offset 0 on."""
        borders = [*accumulate(sizes, initial=0)]
        return cls(borders[:-1], borders[1:])

    @property
    def size(self) -> int:
        """The end of the line."""
        return self.ends[-1] if self.ends else 0

    def cuts(self, stretches: Iterable[tuple[int, int]], most: int = sys.maxsize) -> Iterator[Cut]:
        """Yields every byte of the stretches once, in order; no cut crosses a piece's end or has more than `most`.

        Raises NotInPieces at the first byte that is in none; those before were yielded.
        """
        begin = until = index = 0
        for number, (offset, size) in enumerate(stretches):
            at, end = offset, offset + size
            while at < end:
                if not begin <= at < until:  # often it is still the piece of the cut before
                    index = self._piece_of(at)
                    begin, until = self.starts[index], self.ends[index]
                length = min(end - at, until - at, most)
                yield Cut(number, at - offset, index, at - begin, length)
                at += length

    def _piece_of(self, at: int) -> int:
        index = bisect_right(self.starts, at) - 1
        if index < 0 or at >= self.ends[index]:
            raise NotInPieces(f"byte {at} of the line is in none of {len(self.starts)} pieces")
        return index
