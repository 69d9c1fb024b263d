"""Pushes an image of this store into a store elsewhere, its manifest last.

A pack that is there is not sent again: packs never change, so id, size and footer identify one. If another pack has the
id, nothing is sent, since an image may need that pack. Every byte is compared with its chunk's name before it is sent;
size and footer are read back after. In between the requests' own checksums vouch for the bytes (remote.py). A push does
not read all bytes back; a pull compares them all.

Of two images that are pushed under one name one arrives: a push claims the name before it writes anything but packs,
and removes the claim at the end (remote.py; for a folder, folder.py). A push that dies leaves at most this claim,
small files, packs, and parts of a pack. A bucket does not list such parts; the next clean-up of a folder removes them.

The root of an image over nodes goes with its part, before the manifest: a root without its part counts for nothing.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Self

from msgspec import Struct

from gcr.image.disk.failing import usable
from gcr.image.files.manifest import Manifest
from gcr.image.files.names import manifest_path, root_path
from gcr.image.files.roots import may_have_root
from gcr.image.pack.format import Pack
from gcr.image.pack.reader import PackReader
from gcr.image.remote.folder import remote_at
from gcr.image.remote.remote import Remote, pack_path
from gcr.image.remote.transfer import PART, PARTS, Transfer
from gcr.image.store.store import Store
from gcr.imageerrors import ImageExists, StoreUnusable

_TRIES = 3  # to publish an image that other processes remove meanwhile
_MOST_REQUESTS = 10_000  # for one object of S3


class Moved(Struct, frozen=True):
    """The packs of an image and their bytes, and those of them that had to move.

    rooted: of a part of an image over nodes, whether its root went along; None for any other image
    """

    packs: int
    bytes: int
    packs_moved: int
    bytes_moved: int
    rooted: bool | None = None


def push(store: Store, name: str, url: str, transfer: Transfer) -> Moved:
    """Pushes an image; it is there, whole, when this returns. Files that were there and differ are replaced.

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
    return Moved(len(sizes), sum(sizes), len(missing), sum(pack.bytes for pack in missing), image.rooted)


class _Image(Struct, frozen=True):
    """An image to be pushed. `stored`, `beside`: the bytes of its small files, a root among them.

    They are read before packs are sent, so that they belong together even if the image is replaced meanwhile.
    rooted: as of Moved
    """

    manifest: Manifest
    stored: bytes
    beside: Mapping[str, bytes]  # by path
    rooted: bool | None

    @classmethod
    def of(cls, store: Store, name: str) -> Self:
        """Raises NoSuchImage, WrongImage, Damaged."""
        stored = store.images.stored(name)
        manifest = store.images.manifest_of(name, stored)
        beside = {**store.images.stored_beside(manifest)}
        if not may_have_root(name):
            return cls(manifest, stored, beside, None)
        root = store.roots.of(manifest)
        if root is not None:
            beside[root_path(name)] = root.to_text().encode()
        return cls(manifest, stored, beside, root is not None)


def _same(remote: Remote, manifest: Manifest) -> bool:
    """Returns whether this image is there. Raises ImageExists if another image has its name."""
    found = remote.manifest(manifest.name)
    if found not in (None, manifest):
        raise ImageExists(f"there is another image {manifest.name!r} at {remote.url}", hint="push to another prefix")
    return found is not None


def _send_beside(remote: Remote, image: _Image, there: bool) -> None:
    """Sends files that are missing or differ; all of them if the image is not there.

    Files without an image may be those of a push that died before it synced them.
    """
    for path, found in image.beside.items():
        if not there or remote.size(path) != len(found) or remote.read(path, len(found)) != found:
            remote.write(path, found)


def _publish(remote: Remote, image: _Image) -> None:
    """Publishes the manifest, also of an image that was there and may be gone. Raises ImageExists, StoreUnusable."""
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
    """Returns the size of the parts of an object of `size` bytes."""
    return max(PART, -(-size // _MOST_REQUESTS))


def _pieces(reader: PackReader, size: int, transfer: Transfer) -> Iterator[bytes]:
    with usable(reader.path), reader.path.open("rb", buffering=0) as file:
        for at in range(0, reader.pack.bytes, size):
            transfer.check()
            piece = os.pread(file.fileno(), size, at)
            yield piece
            transfer.add(len(piece))
