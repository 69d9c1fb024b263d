"""The pieces of some packs, and what the receiver knows of each giver's part of them."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct, field

from gcr.image.exchange.spans import Spans
from gcr.image.exchange.wire import Look, LookPack, Told, ToldPack
from gcr.image.pack.format import Pack


class Piece(Struct, frozen=True):
    """Bytes of a pack that are asked for together.

    take: compares them and keeps them, on any thread; raises Damaged if they are not those of the pack
    """

    pack: Pack
    at: int
    size: int
    take: Callable[[memoryview], object]

    @property
    def end(self) -> int:
        return self.at + self.size


class Pieces:
    """Pieces by number, and those of each pack by place; no two of them overlap."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.all = pieces
        self.packs = {piece.pack.id: piece.pack for piece in pieces}
        by_pack: dict[str, list[int]] = {}
        for number in sorted(range(len(pieces)), key=lambda number: pieces[number].at):
            by_pack.setdefault(pieces[number].pack.id, []).append(number)
        self._numbers = by_pack
        self._ends = {pack: [pieces[number].end for number in numbers] for pack, numbers in by_pack.items()}

    def of(self, pack: str) -> Sequence[int]:
        return self._numbers.get(pack, ())

    def touched(self, pack: str, at: int, end: int) -> Iterator[int]:
        """Yields the pieces that have bytes between these two places."""
        numbers = self.of(pack)
        for number in numbers[bisect_left(self._ends.get(pack, ()), at + 1) :]:
            if self.all[number].at >= end:
                break
            yield number


class _KnownPack(Struct):
    """A giver's part of a pack. `life`, `runs`, `given`: see LookPack."""

    whole: bool = False
    life: str = ""
    runs: int = 0
    given: int = 0
    spans: Spans = field(default_factory=Spans)


class News(Struct):
    """The answer of a giver: numbers of pieces that it has, and that it gave to others."""

    has: Iterable[int]
    given: Iterable[int]
    growing: bool


class Known:
    """The pieces of one giver, as it told them."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._packs: dict[str, _KnownPack] = {}

    def look(self) -> Look:
        """Returns the question for what is not known yet."""
        return Look({id: _asked(pack, self._packs.get(id, _KnownPack())) for id, pack in self._pieces.packs.items()})

    def learned(self, told: Told) -> News:
        has, given, growing = list[int](), list[int](), False
        for id, each in told.packs.items():
            if id not in self._pieces.packs:
                continue
            known = self._packs.setdefault(id, _KnownPack())
            has += self._has(id, known, each)
            given += [number for at, size in each.given for number in self._pieces.touched(id, at, at + size)]
            known.given = each.given_at
            growing = growing or bool(each.life and not each.whole)
        return News(has, given, growing)

    def _has(self, id: str, known: _KnownPack, told: ToldPack) -> Iterable[int]:
        if told.whole:
            fresh = () if known.whole else self._pieces.of(id)
            known.whole = True
            return fresh
        if told.life != known.life:
            known.life, known.runs, known.spans = told.life, 0, Spans()
        known.runs += len(told.runs)
        runs = [run for run in told.runs if run[0] >= 0 and run[1] > 0]
        return [number for run in runs for number in self._covered(id, known.spans, *run)]

    def _covered(self, id: str, spans: Spans, at: int, size: int) -> Iterator[int]:
        """Adds a run; yields the pieces in it that are covered now."""
        begin, end = spans.add(at, at + size)
        for number in self._pieces.touched(id, at, at + size):
            piece = self._pieces.all[number]
            if begin <= piece.at and piece.end <= end:
                yield number


def _asked(pack: Pack, known: _KnownPack) -> LookPack:
    return LookPack(seal=pack.seal.hex(), life=known.life, runs=known.runs, given=known.given, whole=known.whole)
