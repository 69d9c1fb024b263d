"""Packed records of chunks, as the files of a store have them: a name, numbers of 32 bits, and what else a record has.

A Python object for each chunk would take many times the memory, and more time than the chunk takes to be read.
"""

from array import array
from collections.abc import Sequence

from gcr.image.chunks.chunk import NAME_BYTES

_WORD = 8  # bytes; a record has whole words
_NAME = range(NAME_BYTES // _WORD)  # the words of a name


class Records:
    """Records of `size` bytes, back to back; each begins with the name of a chunk."""

    def __init__(self, data: bytes, size: int) -> None:
        """Raises ValueError if a record is cut off."""
        if len(data) % size:
            raise ValueError("a record is cut off")
        self._data, self._size = data, size
        self._words = memoryview(data).cast("Q")

    def __len__(self) -> int:
        """Returns the number of records."""
        return len(self._data) // self._size

    def column(self, at: int) -> "array[int]":
        """Returns the number of 32 bits that each record has at this offset."""
        return array("I", memoryview(self._data).cast("I")[at // 4 :: self._size // 4].tobytes())

    def names(self, first: int, end: int) -> Sequence[bytes]:
        """Returns the names of the records from `first` up to `end`."""
        starts = range(first * self._size, end * self._size, self._size)
        return [self._data[start : start + NAME_BYTES] for start in starts]

    def same_names(self, first: int, end: int, other: "Records", there: int) -> bool:
        """Returns whether these records have the names of other ones, from `there` on."""
        until = there + end - first
        return all(self._part(word, first, end) == other._part(word, there, until) for word in _NAME)

    def _part(self, word: int, first: int, end: int) -> memoryview:
        """Returns one word of each name."""
        step = self._size // _WORD
        return self._words[first * step + word : end * step : step]
