"""Pushing: an image of this store is put into one elsewhere, its manifest last.

What is there already is not sent again: a pack never changes, so one with its id, its size and its footer is it. Where
another pack has the id nothing is sent, for some image may need that one. Every byte of what is sent was compared with
its name before, and size and footer are read back after; in between the requests' own checksums vouch for the bytes
(remote.py). Nobody reads back all that was sent: a pull does, and whoever doubts a remote pulls from it.

Of two images that are pushed under one name one arrives: who writes anything beside a pack has claimed the name before,
and lets go of it at the end (remote.py; in a folder, folder.py). A push that dies leaves at most this claim, packs, and
parts of a pack that the bucket shows to nobody, or the folder's next clean-up takes away.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Self

from msgspec import Struct

from gcr.errors import ImageExists, StoreUnusable
from gcr.image.disk.failing import usable
from gcr.image.files.manifest import Manifest
from gcr.image.files.names import manifest_path
from gcr.image.pack.format import Pack
from gcr.image.pack.reader import PackReader
from gcr.image.remote.folder import remote_at
from gcr.image.remote.remote import Remote, pack_path
from gcr.image.remote.transfer import PART, PARTS, Transfer
from gcr.image.store.store import Store

_TRIES = 3  # to publish what others remove
_MOST_REQUESTS = 10_000  # that S3 makes one object of


class Moved(Struct, frozen=True):
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
        remote, manifest = remote_at(url, store.cipher), image.manifest
        with remote.used(name):
            _same(remote, manifest)
            missing = _send_packs(store, manifest, remote, transfer)
            remote.claim(name, image.stored)
            try:
                there = _same(remote, manifest)
            except ImageExists:
                remote.release(name)
                raise
            _send_beside(remote, image, there)
            _publish(remote, image)
            remote.release(name)
    sizes = [pack.bytes for pack in manifest.packs]
    return Moved(len(sizes), sum(sizes), len(missing), sum(pack.bytes for pack in missing))


class _Image(Struct, frozen=True):
    """`stored`, `beside`: the bytes of its small files, which the manifest is of, and vouches for: whatever becomes of
    the files while packs are sent."""

    manifest: Manifest
    stored: bytes
    beside: Mapping[str, bytes]  # by path

    @classmethod
    def of(cls, store: Store, name: str) -> Self:
        """Raises NoSuchImage, WrongImage, Damaged."""
        stored = store.images.stored(name)
        manifest = store.images.manifest_of(name, stored)
        return cls(manifest, stored, store.images.stored_beside(manifest))


def _same(remote: Remote, manifest: Manifest) -> bool:
    """Whether this image is there. Raises ImageExists for another one of the name."""
    found = remote.manifest(manifest.name)
    if found not in (None, manifest):
        raise ImageExists(f"there is another image {manifest.name!r} at {remote.url}", hint="push to another prefix")
    return found is not None


def _send_beside(remote: Remote, image: _Image, there: bool) -> None:
    """What is there of an image that is not, somebody has left who died before it was synced."""
    for path, found in image.beside.items():
        if not there or remote.size(path) != len(found) or remote.read(path, len(found)) != found:
            remote.write(path, found)


def _publish(remote: Remote, image: _Image) -> None:
    """Also where it was there: somebody may have removed it. Raises ImageExists, StoreUnusable."""
    for _ in range(_TRIES):
        if remote.publish(image.manifest.name, image.stored) or _same(remote, image.manifest):
            return
    address = remote.address(manifest_path(image.manifest.name))
    raise StoreUnusable(f"{address} cannot be made, for there is one, and cannot be read, for there is none")


def _send_packs(store: Store, manifest: Manifest, remote: Remote, transfer: Transfer) -> list[Pack]:
    missing: list[Pack] = []

    def look(pack: Pack) -> None:
        transfer.check()
        if not remote.has(pack):
            missing.append(pack)

    def send(pack: Pack) -> None:
        reader = store.packs.reader(pack)
        for _ in reader.check():
            transfer.check()
        _send(reader, remote, transfer, transfer.at_once(len(missing)))
        if not remote.has(pack):
            raise StoreUnusable(f"{remote.address(pack_path(pack))} is not what was sent")

    transfer.each(look, manifest.packs, PARTS)
    transfer.total = sum(pack.bytes for pack in missing)
    transfer.each(send, missing)
    return missing


def _send(reader: PackReader, remote: Remote, transfer: Transfer, at_once: int) -> None:
    size = part_bytes(reader.pack.bytes)
    in_flight = max(1, min(at_once, at_once * PART // size))
    remote.write_pack(reader.pack, _pieces(reader, size, transfer), size, in_flight)


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
