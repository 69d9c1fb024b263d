"""The books of an arena: its segments, with the owner of each, and its limit."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct, field

from gcr.memory.choosing import total
from gcr.memory.layout import Segment
from gcr.memory.memfiles import is_held_still


class Ledger(Struct):
    """The segments of one arena. Each call is made with the arena's lock held.

    limit: bytes of all segments that the arena makes, adopted ones not counted.
    """

    limit: int
    free: dict[Segment, str] = field(
        default_factory=dict
    )  # with the owner of the bytes it last held; "" for a fresh one
    taken: dict[Segment, str] = field(default_factory=dict)
    adopted: set[Segment] = field(default_factory=set)
    promised: set[Segment] = field(default_factory=set)  # taken, but not yet filled, mapped or pinned
    unpinned: set[Segment] = field(default_factory=set)  # adopted, filled and mapped, but not yet pinned
    left: dict[Segment, tuple[Segment, ...]] = field(
        default_factory=dict
    )  # free, with the bytes that they had when these were given back together
    being_made: int = 0  # bytes

    @property
    def bytes(self) -> int:
        """All memory of the arena, adopted segments included."""
        return total(self.free) + total(self.taken)

    @property
    def own_bytes(self) -> int:
        """The bytes that count against the limit."""
        return total(s for s in (*self.free, *self.taken) if s not in self.adopted)

    def has_room(self, nbytes: int, available: int) -> bool:
        """Tells whether so much more fits, with no owner giving up a segment. available: bytes of the host."""
        coming = self.being_made + nbytes
        return self.own_bytes + coming <= self.limit and total(self.promised) + coming <= available

    def usable(self, owner: str) -> list[Segment]:
        """Returns the free segments that an owner may take, pinned ones first."""
        found = (s for s, last in self.free.items() if last == "" or (last == owner and not is_held_still(s.fd)))
        return sorted(found, key=self.unpinned.__contains__)

    def leave(self, parts: tuple[Segment, ...]) -> None:
        """Notes that these are free now with bytes that their owner may want again."""
        self.left.update((part, parts) for part in parts if part in self.free)

    def has_left(self, parts: tuple[Segment, ...], owner: str) -> bool:
        """Tells whether the owner may take all of these again, and finds its bytes there."""
        mine = (self.left.get(part) is parts and self.free.get(part) == owner for part in parts)
        return all(mine) and not any(is_held_still(part.fd) for part in parts)

    def take(self, parts: Sequence[Segment], owner: str) -> None:
        for part in parts:
            self.free.pop(part, None)
            self.left.pop(part, None)
            self.taken[part] = owner

    def adopt(self, parts: Sequence[Segment], owner: str) -> None:
        """Takes segments from elsewhere in for an owner."""
        self.take(parts, owner)
        self.adopted.update(parts)
        self.unpinned.update(parts)

    def lacking(self, parts: Iterable[Segment]) -> tuple[list[Segment], list[Segment]]:
        """Returns those of the segments that are promised, and those that are unpinned."""
        wanted = [*parts]
        return [s for s in wanted if s in self.promised], [s for s in wanted if s in self.unpinned]

    def is_pinned(self, part: Segment) -> None:
        """Notes that a segment is pinned, or gone."""
        self.promised.discard(part)
        self.unpinned.discard(part)

    def free_unpinned(self, owners: Collection[str]) -> list[Segment]:
        """Returns the free segments of these owners that are not pinned."""
        return [s for s, last in self.free.items() if last in owners and s in self.unpinned]

    def give_back(self, parts: Sequence[Segment], owner: str) -> list[Segment]:
        """Frees taken segments. Returns those of them that are promised, which the caller releases."""
        gone = self.drop(parts)
        empty = [part for part in gone if part in self.promised]
        for part in gone:
            if part not in empty:
                self.free[part] = owner
                self.adopted.discard(part)  # part of the pool, and of its limit, from now on
        return empty

    def drop(self, parts: Sequence[Segment]) -> list[Segment]:
        """Removes taken segments. Returns those that were there."""
        return [part for part in parts if self.taken.pop(part, None) is not None]

    def forget(self, part: Segment) -> None:
        """Removes a free segment."""
        del self.free[part]
        self.left.pop(part, None)
        self.adopted.discard(part)

    def clear(self) -> list[Segment]:
        """Removes all segments, and returns them."""
        everything = [*self.free, *self.taken]
        self.free.clear()
        self.left.clear()
        self.taken.clear()
        self.adopted.clear()
        return everything

    def forget_free(self, nbytes: int, which: Callable[[str], bool]) -> list[Segment]:
        """Removes free segments of these owners, used ones first, until `nbytes` are gone. Returns them.

        Used segments that their owner may want again, with their bytes, come after the other used ones.
        """
        gone: list[Segment] = []
        for part in sorted(self.free, key=lambda s: (self.free[s] == "", s in self.left)):
            if which(self.free[part]) and total(gone) < nbytes and not is_held_still(part.fd):
                gone.append(part)
        for part in gone:
            self.forget(part)
        return gone

    def releasable(self, spared: Collection[str]) -> tuple[int, int]:
        """Returns the bytes of free segments of owners not spared, and the bytes that another process still reads."""
        read = {s for s, last in self.free.items() if last and is_held_still(s.fd)}
        return total(s for s, last in self.free.items() if last not in spared and s not in read), total(read)

    def owned(self) -> tuple[Counter[str], list[Segment]]:
        """Returns the bytes of each owner, and the fresh segments, the largest first."""
        has = Counter[str]()
        for part, owner in (*self.free.items(), *self.taken.items()):
            has[owner] += part.size
        return has, sorted((part for part, last in self.free.items() if last == ""), key=lambda s: -s.size)


def shortfalls(wishes: Mapping[str, int], has: Mapping[str, int], fresh: list[Segment]) -> dict[str, int]:
    """Returns the bytes that each owner lacks if each takes of the fresh segments, which this removes from `fresh`."""
    short: dict[str, int] = {}
    for owner, wanted in wishes.items():
        left = wanted - has.get(owner, 0)
        for part in [*fresh]:
            if part.size <= left:
                fresh.remove(part)
                left -= part.size
        if left > 0 and fresh:
            left -= fresh.pop().size
        short[owner] = max(0, left)
    return short
