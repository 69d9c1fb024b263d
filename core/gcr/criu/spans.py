"""Sets of addresses, as spans in order that do not overlap."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

Span = tuple[int, int]
"""Begin and end."""


def meeting(spans: Sequence[Span], begin: int, end: int) -> Sequence[Span]:
    """Returns those of the spans that have something between `begin` and `end`."""
    first = bisect_right(spans, begin, key=itemgetter(1))
    return spans[first : bisect_left(spans, end, key=itemgetter(0))]


def less(spans: Iterable[Span], others: Sequence[Span]) -> Iterator[Span]:
    """Yields what is in `spans` and not in `others`."""
    number = 0
    for begin, end in spans:
        while number < len(others) and others[number][1] <= begin:
            number += 1
        for gone, after in others[number:]:
            if gone >= end:
                break
            if gone > begin:
                yield begin, gone
            begin = min(end, after)
        if begin < end:
            yield begin, end


def common(spans: Iterable[Span], others: Sequence[Span]) -> Iterator[Span]:
    """Yields what is in both."""
    number = 0
    for begin, end in spans:
        while number < len(others) and others[number][1] <= begin:
            number += 1
        for first, last in others[number:]:
            if first >= end:
                break
            yield max(begin, first), min(end, last)


def joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Yields spans that are in order of their begins, and may overlap; those that touch as one."""
    last: Span | None = None
    for begin, end in spans:
        if last and begin <= last[1]:
            last = last[0], max(end, last[1])
            continue
        if last:
            yield last
        last = begin, end
    if last:
        yield last


def several(sets: Iterable[Iterable[Span]]) -> Iterator[Span]:
    """Yields what is in more than one of the sets."""
    until = begun = 0
    for begin, end in sorted(span for spans in sets for span in spans):
        if begin < until and (here := (max(begin, begun), min(end, until)))[0] < here[1]:
            yield here
            begun = here[1]
        until = max(until, end)
