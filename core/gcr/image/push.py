"""Pushing: an image of this store is put into one elsewhere, its manifest last.

What is there already is not sent again: a pack never changes, so one with its id, its size and its footer is it. Where
another pack has the id nothing is sent, for some image may need that one. Every byte of what is sent was compared with
its name before, and size and footer are read back after; in between the requests' own checksums vouch for the bytes
(remote.py). Nobody reads back all that was sent: a pull does, and whoever doubts a remote pulls from it.

Of two images that are pushed under one name one arrives: who writes anything beside a pack has made the object
`<name>.json.new` before, with the manifest in it, where no other push has one that says something else. It goes at the
end. A push that dies leaves at most this object, packs, and parts of a pack that the bucket shows to nobody.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from gcr.errors import ImageExists, StoreUnusable
from gcr.image.files import claim_path, manifest_path, usable
from gcr.image.manifest import Manifest
from gcr.image.pack import Pack, PackReader
from gcr.image.remote import Remote, pack_path
from gcr.image.smallfiles import MOST_MANIFEST
from gcr.image.store import Store
from gcr.image.transfer import PART, PARTS, Transfer

_MOST_REQUESTS = 10_000  # that S3 makes one object of


@dataclass(frozen=True, slots=True)
class Moved:
    """`packs`, `bytes`: of the image, in packs; the others: what of it was not there yet."""

    packs: int
    bytes: int
    packs_moved: int
    bytes_moved: int


def push(store: Store, name: str, url: str, transfer: Transfer) -> Moved:
    """When this returns the image is there, whole. What of it was there before, and differs, is repaired.

    Raises NoSuchImage, ImageExists, WrongImage, WrongKey, Damaged, StoreUnusable, LibraryMissing, UsageError,
    DeadlinePassed.
    """
    with usable(store.path), store.used():
        image = _Image.of(store, name)
        manifest = image.manifest
        remote = Remote(url, store.cipher, make=True)
        with remote.used():
            there = _same(remote, manifest)
            missing = _send_packs(store, manifest, remote, transfer)
            if not there:
                _claim(remote, manifest, image.stored)
            for path, found in image.beside.items():
                if remote.size(path) != len(found) or remote.read(path, len(found)) != found:
                    remote.write(path, found)
            if not there and not remote.create(manifest_path(name), image.stored):
                _same(remote, manifest)
            remote.remove(claim_path(name))
    sizes = [pack.bytes for pack in manifest.packs]
    return Moved(len(sizes), sum(sizes), len(missing), sum(pack.bytes for pack in missing))


@dataclass(frozen=True, slots=True)
class _Image:
    """`stored`, `beside`: the bytes of its small files, which the manifest is of, and vouches for: whatever becomes of
    the files while packs are sent."""

    manifest: Manifest
    stored: bytes
    beside: Mapping[str, bytes]  # by path

    @classmethod
    def of(cls, store: Store, name: str) -> Self:
        """Raises NoSuchImage, WrongImage, Damaged."""
        stored = store.stored(name)
        manifest = store.manifest_of(name, stored)
        return cls(manifest, stored, store.stored_beside(manifest))


def _same(remote: Remote, manifest: Manifest) -> bool:
    """Whether this image is there. Raises ImageExists for another one of the name."""
    found = remote.manifest(manifest.name)
    if found not in (None, manifest):
        raise ImageExists(f"there is another image {manifest.name!r} at {remote.url}", hint="push to another prefix")
    return found is not None


def _claim(remote: Remote, manifest: Manifest, ours: bytes) -> None:
    """From here on nobody writes anything else under this name. `ours`: what is stored of it. Raises ImageExists."""
    path = claim_path(manifest.name)
    while not remote.create(path, ours):
        found = remote.read(path, MOST_MANIFEST)
        if found == ours:  # a push of this very image does the same, or died of it
            break
        if found is not None:
            message = f"another image {manifest.name!r} is being pushed to {remote.url}, or its push was cut short"
            raise ImageExists(message, hint=f"remove {remote.place(path)} if nobody is pushing it")
    try:
        _same(remote, manifest)
    except ImageExists:
        remote.remove(path)
        raise


def _send_packs(store: Store, manifest: Manifest, remote: Remote, transfer: Transfer) -> list[Pack]:
    missing: list[Pack] = []

    def look(pack: Pack) -> None:
        transfer.check()
        if not remote.has(pack):
            missing.append(pack)

    def send(pack: Pack) -> None:
        reader = store.pack(pack)
        for _ in reader.check():
            transfer.check()
        _send(reader, remote, transfer, transfer.at_once(len(missing)))
        if not remote.has(pack):
            raise StoreUnusable(f"{remote.place(pack_path(pack))} is not what was sent")

    transfer.each(look, manifest.packs, PARTS)
    transfer.total = sum(pack.bytes for pack in missing)
    transfer.each(send, missing)
    return missing


def _send(reader: PackReader, remote: Remote, transfer: Transfer, at_once: int) -> None:
    size = part_bytes(reader.pack.bytes)
    in_flight = max(1, min(at_once, at_once * PART // size))
    remote.write(pack_path(reader.pack), _pieces(reader, size, transfer), size, in_flight)


def part_bytes(size: int) -> int:
    """Of the parts of an object of so many bytes."""
    return max(PART, -(-size // _MOST_REQUESTS))


def _pieces(reader: PackReader, size: int, transfer: Transfer) -> Iterator[bytes]:
    with usable(reader.path), reader.path.open("rb", buffering=0) as file:
        for at in range(0, reader.pack.bytes, size):
            transfer.check()
            piece = os.pread(file.fileno(), size, at)
            yield piece
            transfer.add(len(piece))
