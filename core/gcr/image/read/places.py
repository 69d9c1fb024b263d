"""The places of an image's chunks, as runs: chunks that follow each other in the image and in a pack, or are zeros.

Most images have few runs. The places of a million chunks are then a few numbers, and are found as fast.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from gcr.image.chunks.chunk import NAME_BYTES
from gcr.image.chunks.entry import PLACED
from gcr.image.chunks.index import Index
from gcr.image.chunks.records import Records
from gcr.image.files.manifest import Manifest
from gcr.image.files.references import ZEROS, References
from gcr.image.files.smallfiles import chunk_sizes
from gcr.image.pack.reader import PackReader
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged

_Run = tuple[int, int, int]  # number of its first chunk in the image, pack or ZEROS, number of the chunk in the pack


class Part(Struct, frozen=True):
    """Some chunks of a run, by their numbers in the image. `size`: their bytes.

    pack: its number in the references, or ZEROS · there: the number of the first chunk in the pack
    """

    first: int
    end: int
    size: int
    pack: int
    there: int

    @property
    def until(self) -> int:
        """Returns the number in the pack behind that of the last chunk."""
        return self.there + self.end - self.first


class Places:
    """The place of each chunk of an image. `sizes`: of all chunks, in bytes."""

    def __init__(self, sizes: "array[int]", runs: Iterable[_Run]) -> None:
        self.sizes = sizes
        self._firsts, self._packs, self._there = array("Q"), array("I"), array("Q")
        for first, pack, there in runs:
            self._firsts.append(first)
            self._packs.append(pack)
            self._there.append(there)
        self._firsts.append(len(sizes))

    def runs(self) -> Iterator[tuple[int, int, int, int]]:
        """Yields number of the first chunk, the one behind the last, pack or ZEROS, number of the chunk in the pack."""
        return zip(self._firsts[:-1], self._firsts[1:], self._packs, self._there, strict=True)

    def parts(self, first: int, end: int) -> Iterator[Part]:
        """Yields the chunks from `first` up to `end`, in order."""
        run = bisect_right(self._firsts, first) - 1
        while first < end:
            until = min(end, self._firsts[run + 1])
            there = self._there[run] + first - self._firsts[run]
            yield Part(first, until, sum(self.sizes[first:until]), self._packs[run], there)
            first, run = until, run + 1


_SHORT = 32  # chunks


class _Misplaced(Exception):
    """A chunk is not where its reference says."""


def checked_places(store: Store, manifest: Manifest, references: References, packs: Sequence[PackReader]) -> Places:
    """Returns the places of all chunks. Raises Damaged unless each is where the references say."""
    indexes, sizes = [pack.chunks for pack in packs], chunk_sizes(manifest)
    try:
        places = Places(sizes, _runs(references, indexes))
        _refuse_others(places, references, indexes, store.cipher.name_of_zeros)
    except _Misplaced:
        raise Damaged.of(store.images.folder / manifest.name, "a chunk is not where it should be") from None
    return places


def _runs(references: References, indexes: Sequence[Index]) -> Iterator[_Run]:
    """Yields the runs, by packs and blocks alone."""
    packs, blocks, number = references.packs, references.blocks, 0
    while number < len(packs):
        pack = packs[number]
        there = 0 if pack == ZEROS else _number_of(blocks[number], pack, indexes)
        yield number, pack, there
        number += _count(packs, blocks, number, None if pack == ZEROS else indexes[pack].borders, there)


def _count(packs: "array[int]", blocks: "array[int]", first: int, borders: "array[int] | None", there: int) -> int:
    """Returns how many chunks from `first` on are of the same pack and follow each other in it. None: of zeros.

    Looks at a few chunks one by one, as most runs of an image with scattered changes are short, and then compares whole
    stretches.
    """
    pack, most = packs[first], len(packs) - first
    if borders is not None:
        most = min(most, len(borders) - 1 - there)  # the last border is the end of the pack
    count, near = 1, min(most, _SHORT)
    if borders is None:
        while count < near and packs[first + count] == pack:
            count += 1
    else:
        while count < near and packs[first + count] == pack and blocks[first + count] == borders[there + count]:
            count += 1
    if count < near or near == most:
        return count

    def follow(count: int) -> bool:
        if packs[first : first + count] != packs[first : first + 1] * count:
            return False
        return borders is None or blocks[first : first + count] == borders[there : there + count]

    return _largest(follow, near, most)


def _largest(holds: Callable[[int], bool], known: int, most: int) -> int:
    """Returns the largest number up to `most` of which `holds` is true. It is of `known`, and of all smaller ones."""
    tried = 4 * known
    while tried < most and holds(tried):
        known, tried = tried, 4 * tried
    return bisect_left(range(min(tried, most) + 1), True, known + 1, key=lambda count: not holds(count)) - 1


def _number_of(block: int, pack: int, indexes: Sequence[Index]) -> int:
    number = indexes[pack].find(block) if pack < len(indexes) else None
    if number is None:
        raise _Misplaced
    return number


def _refuse_others(
    places: Places, references: References, indexes: Sequence[Index], name_of_zeros: Callable[[int], bytes]
) -> None:
    """Raises _Misplaced unless names and sizes are those of the packs, or of zeros."""
    size = max((index.record_bytes for index in indexes), default=PLACED.size)  # all packs of a store have the same
    there = Records(b"".join(_there(places, indexes, name_of_zeros, size)), size)
    if there.column(NAME_BYTES + 4) != places.sizes or len(there) != len(references):
        raise _Misplaced
    if not references.same_names(0, len(references), there, 0):
        raise _Misplaced


def _there(
    places: Places, indexes: Sequence[Index], name_of_zeros: Callable[[int], bytes], record_bytes: int
) -> Iterator[bytes]:
    """Yields the records that the packs have of all runs, in the image's order; those of zeros are made up."""
    for first, end, pack, there in places.runs():
        if pack == ZEROS:
            sizes = places.sizes[first:end]
            named = {size: PLACED.pack(name_of_zeros(size), 0, size) for size in {*sizes}}
            zeros = {size: record.ljust(record_bytes, b"\0") for size, record in named.items()}
            yield b"".join(map(zeros.__getitem__, sizes))
        else:
            yield indexes[pack].packed(there, there + end - first)
