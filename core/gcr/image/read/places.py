"""The places of an image's chunks, as runs: chunks that follow each other in the image and in a pack, or are zeros.

Most images have few runs. The places of a million chunks are then a few numbers, and are found as fast.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from gcr.image.chunks.index import Index
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

    def parts(self, first: int, end: int) -> Iterator[Part]:
        """Yields the chunks from `first` up to `end`, in order."""
        run = bisect_right(self._firsts, first) - 1
        while first < end:
            until = min(end, self._firsts[run + 1])
            there = self._there[run] + first - self._firsts[run]
            yield Part(first, until, sum(self.sizes[first:until]), self._packs[run], there)
            first, run = until, run + 1


class _Misplaced(Exception):
    """A chunk is not where its reference says."""


def checked_places(store: Store, manifest: Manifest, references: References, packs: Sequence[PackReader]) -> Places:
    """Returns the places of all chunks. Raises Damaged unless each is where the references say."""
    indexes = [pack.chunks for pack in packs]
    try:
        places = Places(chunk_sizes(manifest), _runs(references, indexes))
        _refuse_other_names(places, references, indexes, store.cipher.name_of_zeros)
    except _Misplaced:
        raise Damaged.of(store.images.folder / manifest.name, "a chunk is not where it should be") from None
    return places


def _runs(references: References, indexes: Sequence[Index]) -> Iterator[_Run]:
    """Yields the runs, by packs and blocks alone."""
    last = there = count = -1
    borders: Sequence[int] = ()
    for number, (pack, block) in enumerate(zip(references.packs, references.blocks, strict=True)):
        if pack != last or (pack != ZEROS and (there == count or block != borders[there])):
            last, there = pack, 0
            if pack != ZEROS:
                there = _number_of(block, pack, indexes)
                borders, count = indexes[pack].borders, len(indexes[pack])
            yield number, pack, there
        there += 1


def _number_of(block: int, pack: int, indexes: Sequence[Index]) -> int:
    number = indexes[pack].find(block) if pack < len(indexes) else None
    if number is None:
        raise _Misplaced
    return number


def _refuse_other_names(
    places: Places, references: References, indexes: Sequence[Index], name_of_zeros: Callable[[int], bytes]
) -> None:
    """Raises _Misplaced unless names and sizes are those of the packs, or of zeros."""
    zeros = {size: name_of_zeros(size) for size in {*places.sizes}} if ZEROS in references.packs else {}
    for part in places.parts(0, len(places.sizes)):
        sizes = places.sizes[part.first : part.end]
        if part.pack == ZEROS:
            known = references.names(part.first, part.end) == [zeros[size] for size in sizes]
        else:
            index = indexes[part.pack]
            known = index.sizes[part.there : part.until] == sizes
            known = known and references.same_names(part.first, part.end, index, part.there)
        if not known:
            raise _Misplaced
