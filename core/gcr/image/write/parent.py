"""The parent of an image: the newest image of the same processes that it can build upon.

The parent's hashes show which chunks have not changed and need not be copied again. The child takes over the parent's
references of such chunks. Each reference of a parent is compared with the packs before that. The parent also shows how
much of a job changes between two images. An image needs no other image to be read: its references are its own.

An image from elsewhere (`gcr pull`, `gcr push` into this folder) is no parent. Its chunks were compared with their
names, but only its sender says that its hashes are those of the same bytes. With false hashes the next image would have
other bytes than the process.

Everything that is needed of a parent is read at once, under the store's lock. Afterwards the parent may be removed, and
another image may take its name.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from gcr.hashing import DIGEST_BYTES, HashKey
from gcr.hashing.baseline import Baseline
from gcr.hashing.chunks import chunk_count
from gcr.image.chunks.records import Records
from gcr.image.files.manifest import ImagedProcess, Manifest
from gcr.image.pack.reader import PackReader
from gcr.image.read.places import checked_places
from gcr.image.store.retention import newest_first
from gcr.image.store.store import Store
from gcr.image.write.inherited import Allocation
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged, NoSuchImage, WrongImage

log = logging.getLogger("gcr.image")

Identity = tuple[int, int, int]  # of a process: pid, start time, address of its stack
AllocationKey = tuple[int, int]  # of an allocation: pid and id
ChunkNames = Mapping[AllocationKey, tuple[int, Records]]  # of allocations: size, and records with the chunks' names


class Parent(Struct, frozen=True):
    name: str
    key: HashKey
    chunk_bytes: int
    allocations: Mapping[AllocationKey, Allocation]

    def baseline(self, pid: int) -> Baseline:
        """Returns the hashes of one process, for its workers."""
        mine = {id: (each.size, each.digests) for (of, id), each in self.allocations.items() if of == pid}
        return Baseline(self.key, mine)

    def bytes_changed(self, written: ChunkNames) -> int:
        """Returns the bytes of the chunks that the parent does not have at the same place."""
        return sum(self._changed(key, size, names) for key, (size, names) in written.items())

    def _changed(self, key: AllocationKey, size: int, names: Records) -> int:
        known = self.allocations.get(key)
        if known is None:
            return size
        both = min(len(known.references), len(names))
        others = [*names.other_names(0, both, known.references, 0), (both, len(names))]
        return sum(min(end * self.chunk_bytes, size) - min(first * self.chunk_bytes, size) for first, end in others)


def parent_of(writer: ImageWriter, who: Collection[Identity]) -> tuple[Parent | None, str | None]:
    """Returns the parent of the image that is written, and why a newer image is not it. Raises OSError."""
    refused: str | None = None
    for manifest in newest_first(_of_same(writer, who)):
        try:
            return _read(writer, manifest, who), refused
        except (Damaged, NoSuchImage, WrongImage) as error:
            log.warning("image %s is not built upon: %s", manifest.name, error)
            refused = refused or error.message
    return None, refused


def _of_same(writer: ImageWriter, who: Collection[Identity]) -> Iterator[Manifest]:
    return (m for m in writer.store.images.readable() if any(_identity(each) in who for each in m.processes))


def _identity(imaged: ImagedProcess) -> Identity:
    return imaged.table.pid, imaged.table.start_time, imaged.stack


def _read(writer: ImageWriter, manifest: Manifest, who: Collection[Identity]) -> Parent:
    """Raises Damaged if a file of the image is not what was written; NoSuchImage if it was removed just now."""
    if writer.store.images.is_pulled(manifest.name):  # before its hashes are read: another image may take its name
        raise Damaged.of(manifest.name, "it came from elsewhere, and its hashes cannot be compared here")
    if manifest.chunk_bytes != writer.chunk_bytes:
        raise Damaged.of(manifest.name, f"it has chunks of {manifest.chunk_bytes} bytes")
    references, hashes = writer.store.images.references(manifest), writer.store.images.hashes(manifest)
    checked_places(writer.store, manifest, references, _packs(writer.store, manifest))
    found, first = dict[AllocationKey, Allocation](), 0
    for process in manifest.processes:
        for handle in process.table.handles:
            end = first + chunk_count(handle.spec.size, manifest.chunk_bytes)
            if _identity(process) in who:
                digests = hashes.digests[first * DIGEST_BYTES : end * DIGEST_BYTES]
                allocation = Allocation(handle.spec.size, references.part(first, end), digests, manifest.packs)
                found[process.table.pid, handle.spec.id] = allocation
            first = end
    writer.prepare()
    return Parent(manifest.name, hashes.key, manifest.chunk_bytes, found)


def _packs(store: Store, manifest: Manifest) -> Sequence[PackReader]:
    """Raises Damaged unless all packs are there, and none was found damaged; WrongImage, OSError."""
    try:
        store.packs.refuse_distrusted(manifest.packs)
        return [store.packs.reader(pack) for pack in manifest.packs]
    except Damaged as error:
        text = f"a pack of it is not there, or was found damaged ({error.message})"
        raise Damaged.of(manifest.name, text) from error
