"""Spans of a file, merged where they meet."""

from bisect import bisect_left, bisect_right


class Spans:
    """The bytes of a file that are known; places are bytes from its beginning."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> tuple[int, int]:
        """Adds the bytes from `begin` up to `end`. Returns the whole span that they are a part of now."""
        first, last = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin], [end]
        return begin, end

    def covers(self, begin: int, end: int) -> bool:
        at = bisect_right(self._begins, begin) - 1
        return at >= 0 and end <= self._ends[at]
