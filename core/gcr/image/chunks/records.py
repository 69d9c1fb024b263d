"""Packed records of chunks, as the files of a store have them: a name, numbers of 32 bits, and what else a record has.

A Python object for each chunk would take many times the memory, and more time than the chunk takes to be read.
"""

from array import array
from collections.abc import Iterator, Sequence

from gcr.image.chunks.chunk import NAME_BYTES

Run = tuple[int, int]  # of chunks: the first, and the one behind the last
_WORD = 8  # bytes; a record has whole words
_NAME = range(NAME_BYTES // _WORD)  # the words of a name
_AT_ONCE = 64  # records that are compared at once


class Records:
    """Records of `size` bytes, back to back; each begins with the name of a chunk."""

    def __init__(self, data: bytes, size: int) -> None:
        """Raises ValueError if a record is cut off."""
        if len(data) % size:
            raise ValueError("a record is cut off")
        self._data, self.record_bytes = data, size
        self._words = memoryview(data).cast("Q")

    def __len__(self) -> int:
        """Returns the number of records."""
        return len(self._data) // self.record_bytes

    def column(self, at: int) -> "array[int]":
        """Returns the number of 32 bits that each record has at this offset."""
        return array("I", memoryview(self._data).cast("I")[at // 4 :: self.record_bytes // 4].tobytes())

    def names(self, first: int, end: int) -> Sequence[bytes]:
        """Returns the names of the records from `first` up to `end`."""
        starts = range(first * self.record_bytes, end * self.record_bytes, self.record_bytes)
        return [self._data[start : start + NAME_BYTES] for start in starts]

    def part(self, first: int, end: int) -> "Records":
        """Returns the records from `first` up to `end`, and keeps no others."""
        return Records(self.packed(first, end), self.record_bytes)

    def packed(self, first: int, end: int) -> bytes:
        """Returns the bytes of the records from `first` up to `end`."""
        return self._data[first * self.record_bytes : end * self.record_bytes]

    def same_names(self, first: int, end: int, other: "Records", there: int) -> bool:
        """Returns whether these records have the names of other ones, from `there` on."""
        until = there + end - first
        return all(self._part(word, first, end) == other._part(word, there, until) for word in _NAME)

    def _part(self, word: int, first: int, end: int) -> memoryview:
        """Returns one word of each name."""
        step = self.record_bytes // _WORD
        return self._words[first * step + word : end * step : step]

    def other_names(self, first: int, end: int, other: "Records", there: int) -> Iterator[Run]:
        """Yields the runs of records with other names than those of `other`, from `there` on. Both have as large ones.

        Compares many records at once first: most chunks of an image are those of the one before.
        """
        begin = after = first
        for number in self._others(first, end, other, there - first):
            if number != after:
                if after > begin:
                    yield begin, after
                begin = number
            after = number + 1
        if after > begin:
            yield begin, after

    def _others(self, first: int, end: int, other: "Records", shift: int) -> Iterator[int]:
        for begin in range(first, end, _AT_ONCE):
            until = min(begin + _AT_ONCE, end)
            if self.packed(begin, until) == other.packed(begin + shift, until + shift):
                continue
            if self.same_names(begin, until, other, begin + shift):  # their places differ
                continue
            pairs = zip(self.names(begin, until), other.names(begin + shift, until + shift), strict=True)
            yield from (number for number, (ours, theirs) in enumerate(pairs, begin) if ours != theirs)
