"""Tells how much of each pack is used, so that a writer takes no place in a sparse one.

A pack goes as a whole, with the last image that refers to it. So a few chunks that rest while all else changes would
keep each of a training's old packs. A writer that has such a chunk's bytes writes it again, and the old pack goes.

Used is what an image refers to that stays, and what the image that is written takes; each place counts once. Images
that go once this one is there (`keep_last`) do not count. Of many images the newest MOST_IMAGES count, so that a large
store makes no save slow; what only older ones use may be written again, once.
"""

import logging
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain

from gcr.image.files.manifest import Manifest
from gcr.image.files.references import References
from gcr.image.store.images import Images
from gcr.image.write.known import Known
from gcr.imageerrors import Damaged, NoSuchImage, WrongImage

log = logging.getLogger("gcr.image")

SHARE = 4  # a pack of which less than one part in so many is used is sparse
MOST_IMAGES = 64  # reading the references of one takes 10 to 20 ms for 17 GB

Blocks = Mapping[str, "array[int]"]  # by pack: the block of each chunk of it that an image refers to


class Usage:
    """The use of a store's packs. Not thread-safe. The caller holds the store's lock, and `known` has all packs."""

    def __init__(self, images: Images, going: Collection[str], known: Known) -> None:
        """Reads nothing yet. `going`: names of images that do not count."""
        self._images, self._going, self._known = images, going, known
        self._manifests: dict[str, Manifest | None] = {}  # None: it cannot be read
        self._referred: dict[str, Blocks] = {}  # by image
        self._taken: dict[str, set[int]] = {}
        self._dense: dict[str, bool] = {}

    def is_dense(self, pack: str) -> bool:
        """Returns whether one part in SHARE of the pack is used, in bytes of the disk. Raises StoreUnusable."""
        if pack not in self._dense:
            self._dense[pack] = self._is_dense(pack)
        return self._dense[pack]

    def take(self, pack: str, block: int) -> None:
        """Counts a chunk that the new image takes if it can; a sparse pack may be dense with it."""
        self._taken.setdefault(pack, set()).add(block)
        if not self._dense.get(pack):
            self._dense.pop(pack, None)

    def _is_dense(self, pack: str) -> bool:
        sizes, seen, used = self._known.sizes(pack), set[int](), 0
        enough = sum(sizes.values()) / SHARE
        for blocks in chain([self._taken.get(pack, ())], self._uses_of(pack)):
            new = {*blocks} - seen
            seen |= new
            used += sum(sizes.get(block, 0) for block in new)
            if used >= enough:
                return True
        return False

    def _uses_of(self, pack: str) -> Iterator["array[int]"]:
        """Yields the blocks of each image that refers to the pack, the newest image first."""
        for name in self._newest:
            manifest = self._manifest(name)
            if manifest and any(each.id == pack for each in manifest.packs):
                yield self._blocks_of(manifest).get(pack, array("I"))

    @cached_property
    def _newest(self) -> Sequence[str]:
        """The newest images that stay."""
        times: dict[str, int] = {}
        for name in {*self._images.names()}.difference(self._going):
            with suppress(OSError):  # it was removed just now
                times[name] = self._images.path(name).stat().st_mtime_ns
        return sorted(times, key=lambda name: times[name], reverse=True)[:MOST_IMAGES]

    def _manifest(self, name: str) -> Manifest | None:
        if name not in self._manifests:
            self._manifests[name] = None
            with _uncounted(name):
                self._manifests[name] = self._images.manifest(name)
        return self._manifests[name]

    def _blocks_of(self, manifest: Manifest) -> Blocks:
        if manifest.name not in self._referred:
            self._referred[manifest.name] = {}
            with _uncounted(manifest.name):
                self._referred[manifest.name] = _by_pack(manifest, self._images.references(manifest))
        return self._referred[manifest.name]


@contextmanager
def _uncounted(name: str) -> Iterator[None]:
    """Goes on without an image that cannot be read: at worst chunks that it has are written again."""
    try:
        yield
    except NoSuchImage:  # it was removed just now
        return
    except (Damaged, WrongImage, OSError) as error:
        log.info("image %s does not count as a use of its packs: %s", name, error)


def _by_pack(manifest: Manifest, references: References) -> Blocks:
    found = [array("I") for _ in manifest.packs]
    for pack, block in zip(references.packs, references.blocks, strict=True):
        if pack < len(found):  # not zeros
            found[pack].append(block)
    return {pack.id: blocks for pack, blocks in zip(manifest.packs, found, strict=True)}
