"""The choice of segments that an owner takes of an arena, and the segments that are missing."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from gcr.memory.layout import Segment


class Missing(Struct, frozen=True):
    """`short`: bytes by owner. `sizes`: of the segments to be made. `spare`: fresh ones that no owner would take."""

    short: Mapping[str, int]
    sizes: Sequence[int]
    spare: Sequence[Segment]


def choose(candidates: Sequence[Segment], last: Mapping[Segment, str], nbytes: int) -> list[Segment]:
    """Returns segments of `nbytes` in all: used before fresh, large before small, the last no larger than needed."""
    order = sorted(candidates, key=lambda s: (last[s] == "", -s.size))
    chosen: list[Segment] = []
    left = nbytes
    for part in order:
        if 0 < part.size <= left:
            chosen.append(part)
            left -= part.size
    if left > 0:
        chosen.append(min((s for s in order if s not in chosen), key=lambda s: s.size))
    return chosen


def total(segments: Iterable[Segment]) -> int:
    return sum(segment.size for segment in segments)
