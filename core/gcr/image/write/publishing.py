"""Publishes an image once its chunks are in the store: references and hashes, then the manifest (store/claim.py)."""

import errno
from collections.abc import Callable, Sequence

from msgspec import Struct

from gcr.hashing import HashKey
from gcr.image.chunks.chunk import name_of
from gcr.image.disk.durable import sync
from gcr.image.files import references
from gcr.image.files.hashes import ImageHashes
from gcr.image.files.manifest import Manifest
from gcr.image.files.names import hashes_path, manifest_path, references_path
from gcr.image.files.smallfiles import MOST_BESIDE, MOST_MANIFEST
from gcr.image.pack.format import Pack
from gcr.image.store.claim import Claim
from gcr.image.store.store import Store
from gcr.image.write.part import Part
from gcr.image.write.placing import Counts


class Contents(Struct, frozen=True):
    """The part of a manifest that describes the bytes: packs, digests of references and hashes, counts."""

    packs: Sequence[Pack]
    chunks: bytes
    hashes: bytes
    counts: Counts


def publish(
    store: Store, claim: Claim, part: Part, key: HashKey | None, described: Callable[[Contents], Manifest]
) -> Manifest:
    """Publishes an image of these chunks; it outlives any crash on return. `described` makes its manifest.

    `key`: of the digests, None: there are none. Raises ImageExists, Damaged, OSError.
    """
    contents = _write_beside(store, claim, part, key)
    manifest = described(contents)
    text = manifest.to_bytes()
    Manifest.from_bytes(text, claim.name)  # as every reader will: it refuses a manifest that makes no sense
    data = store.cipher.encrypt(manifest_path(claim.name), text)
    if len(data) > MOST_MANIFEST:
        raise OSError(errno.EFBIG, "an image cannot have so many allocations", claim.name)
    if len(part.references) > MOST_BESIDE:
        raise OSError(errno.EFBIG, "an image cannot be so large", claim.name)
    claim.publish(data)
    return manifest


def _write_beside(store: Store, claim: Claim, part: Part, key: HashKey | None) -> Contents:
    hashed = ImageHashes(key or HashKey.random(), part.digests).to_bytes()
    sync(store.packs.folder)  # also for packs of other writers, which may have died before their sync
    claim.write_references(store.cipher.encrypt(references_path(claim.name), part.references))
    claim.write_hashes(store.cipher.encrypt(hashes_path(claim.name), hashed))
    store.packs.refuse_distrusted(part.packs)
    return Contents(part.packs, references.digest(part.references), name_of(hashed), part.counts)
