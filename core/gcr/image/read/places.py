"""The places of an image's chunks, as runs: chunks that follow each other in the image and in a pack, or are zeros.

Most images have few runs. The places of a million chunks are then a few numbers, and are found as fast. An image with
scattered changes has many: each is found, and compared with the pack, once its chunks are asked for.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from gcr.image.chunks.chunk import NAME_BYTES
from gcr.image.chunks.entry import PLACED
from gcr.image.chunks.records import Records, Run
from gcr.image.files.manifest import Manifest
from gcr.image.files.references import RECORD_BYTES, ZEROS, References, counted
from gcr.image.files.smallfiles import chunk_sizes
from gcr.image.pack.reader import PackReader
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged

_AT_ONCE = 64  # chunks that are compared at once with those of another image
_SHORT = 32  # chunks of a run that are looked at one by one


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


class _Misplaced(Exception):
    """A chunk is not where its reference says."""


class Places:
    """The place of each chunk of an image. `sizes`: of all chunks, in bytes. Thread-safe."""

    def __init__(self, store: Store, manifest: Manifest, references: References, packs: Sequence[PackReader]) -> None:
        """`packs`: of the manifest, in order. Raises Damaged where there are more or fewer references than chunks."""
        self.sizes = chunk_sizes(manifest)
        self._packs = [pack.pack for pack in packs]
        self._references, self._indexes = references, [pack.chunks for pack in packs]
        self._name_of_zeros: Callable[[int], bytes] = store.cipher.name_of_zeros
        self._image = store.images.folder / manifest.name
        if len(references) != len(self.sizes):
            raise self._damaged()

    def parts(self, first: int, end: int) -> Iterator[Part]:
        """Yields the chunks from `first` up to `end`, in order. Raises Damaged unless each is where it should be."""
        try:
            for part in self._runs(first, end):
                self._refuse_other(part)
                yield part
        except _Misplaced:
            raise self._damaged() from None

    def check(self, checked: "Places | None" = None) -> None:
        """Raises Damaged unless all chunks are where they should be. Compares all at once.

        checked: the places of another image of the store, which were checked. A chunk that has the same number, size,
        name and place there is where it should be: its pack is not looked at once more.
        """
        try:
            self._refuse_others([*self._unlike(checked)] if checked else [(0, len(self.sizes))])
        except _Misplaced:
            raise self._damaged() from None

    def _damaged(self) -> Damaged:
        return Damaged.of(self._image, "a chunk is not where it should be")

    # ---- runs --------------------------------------------------------------------------------------------------------

    def _runs(self, first: int, end: int) -> Iterator[Part]:
        """Yields the runs, by packs and blocks alone. Raises _Misplaced."""
        packs, blocks = self._references.packs, self._references.blocks
        while first < end:
            pack, there, borders = packs[first], 0, None
            if pack != ZEROS:
                there, borders = self._number_of(blocks[first], pack), self._indexes[pack].borders
            until = first + self._count(first, end, borders, there)
            yield Part(first, until, sum(self.sizes[first:until]), pack, there)
            first = until

    def _count(self, first: int, end: int, borders: "array[int] | None", there: int) -> int:
        """Returns how many chunks, up to `end`, are of the pack of the first one and follow it there. None: of zeros.

        Looks at a few chunks one by one, as most runs of an image with scattered changes are short, and then compares
        whole stretches.
        """
        packs, blocks, most = self._references.packs, self._references.blocks, end - first
        if borders is not None:
            most = min(most, len(borders) - 1 - there)  # the last border is the end of the pack
        pack, count, near = packs[first], 1, min(most, _SHORT)
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

    def _number_of(self, block: int, pack: int) -> int:
        number = self._indexes[pack].find(block) if pack < len(self._indexes) else None
        if number is None:
            raise _Misplaced
        return number

    # ---- an image that was checked -----------------------------------------------------------------------------------

    def _unlike(self, checked: "Places") -> Iterator[Run]:
        """Yields runs that have every chunk which the other image has not, or has elsewhere."""
        total, theirs, sizes = len(self.sizes), checked._references, checked.sizes
        ours = self._as_in(checked)
        for first in range(0, total, _AT_ONCE):
            end = min(first + _AT_ONCE, total)
            if ours.packed(first, end) != theirs.packed(first, end) or self.sizes[first:end] != sizes[first:end]:
                yield first, end

    def _as_in(self, checked: "Places") -> Records:
        """Returns the references as the other image counts the packs. Packs that it has not get a number of none."""
        there = {pack: number for number, pack in enumerate(checked._packs)}
        numbers = {number: there[pack] for number, pack in enumerate(self._packs) if pack in there}
        return Records(counted(self._references.packed(0, len(self.sizes)), numbers, len(checked._packs)), RECORD_BYTES)

    # ---- names -------------------------------------------------------------------------------------------------------

    def _refuse_other(self, part: Part) -> None:
        """Raises _Misplaced unless names and sizes are those of the pack, or of zeros."""
        sizes = self.sizes[part.first : part.end]
        if part.pack == ZEROS:
            there, at = Records(self._zeros(sizes, PLACED.size), PLACED.size), 0
        else:
            index, at = self._indexes[part.pack], part.there
            there = index
            if index.sizes[at : part.until] != sizes:
                raise _Misplaced
        if not self._references.same_names(part.first, part.end, there, at):
            raise _Misplaced

    def _refuse_others(self, runs: Sequence[Run]) -> None:
        """Raises _Misplaced unless names and sizes of all chunks in the runs are those of the packs, or of zeros."""
        parts = [part for run in runs for part in self._runs(*run)]
        size = max((index.record_bytes for index in self._indexes), default=PLACED.size)  # the same in all of a store
        there = Records(b"".join(self._there(part, size) for part in parts), size)
        ours = Records(b"".join(self._references.packed(*run) for run in runs), RECORD_BYTES)
        if there.column(NAME_BYTES + 4) != array("I", b"".join(self.sizes[slice(*run)] for run in runs)):
            raise _Misplaced
        if not ours.same_names(0, len(ours), there, 0):
            raise _Misplaced

    def _there(self, part: Part, record_bytes: int) -> bytes:
        """Returns the records that the packs have of a run; those of zeros are made up."""
        if part.pack == ZEROS:
            return self._zeros(self.sizes[part.first : part.end], record_bytes)
        return self._indexes[part.pack].packed(part.there, part.until)

    def _zeros(self, sizes: "array[int]", record_bytes: int) -> bytes:
        named = {size: PLACED.pack(self._name_of_zeros(size), 0, size).ljust(record_bytes, b"\0") for size in {*sizes}}
        return b"".join(map(named.__getitem__, sizes))


def checked_places(
    store: Store,
    manifest: Manifest,
    references: References,
    packs: Sequence[PackReader],
    checked: Places | None = None,
) -> Places:
    """Returns the places of all chunks. `checked`: see Places.check.

    Raises Damaged unless each chunk is where the references say.
    """
    places = Places(store, manifest, references, packs)
    places.check(checked)
    return places


def _largest(holds: Callable[[int], bool], known: int, most: int) -> int:
    """Returns the largest number up to `most` of which `holds` is true. It is of `known`, and of all smaller ones."""
    tried = 4 * known
    while tried < most and holds(tried):
        known, tried = tried, 4 * tried
    return bisect_left(range(min(tried, most) + 1), True, known + 1, key=lambda count: not holds(count)) - 1
