"""The claim of an image's name, and the commit of the image.

A commit, in this order: packs are synced and renamed, their directory is synced; references and hashes are synced; the
manifest is synced as `<name>.json.new`, its directory is synced; the manifest is linked to its own name, which fails if
the name is taken; the directory is synced. A crash leaves a whole image, or no image and files that the next clean-up
removes. An image that came from elsewhere has `<name>.pulled` beside its manifest, synced before it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from gcr.image.disk.durable import rehearse_publishing, sync, write_file, write_synced
from gcr.image.disk.locking import Held, claim, unclaim
from gcr.image.files.manifest import at
from gcr.image.files.names import PROBE, claim_path, hashes_path, pulled_path, references_path
from gcr.image.store.images import Images
from gcr.imageerrors import ImageExists, StoreUnusable


class Claim(Struct, frozen=True):
    """The right to write an image of this name. `fd`: the locked file `<name>.json.new`."""

    images: Images
    name: str
    fd: int

    def write_references(self, data: bytes) -> None:
        """Writes the bytes of the file. Raises OSError."""
        write_file(self.images.store / references_path(self.name), data)

    def write_hashes(self, data: bytes) -> None:
        """Writes the bytes of the file. Raises OSError."""
        write_file(self.images.store / hashes_path(self.name), data)

    def publish(self, manifest: bytes, pulled: bool = False) -> None:
        """Writes the bytes of the manifest's file; every file that the manifest names is synced already.

        pulled: no image may build upon it. Raises ImageExists, OSError.
        """
        final, new = self.images.path(self.name), self.images.store / claim_path(self.name)
        self._mark_as_pulled(pulled)
        os.ftruncate(self.fd, 0)
        write_synced(self.fd, manifest)
        sync(self.images.folder)
        try:
            os.link(new, final)
        except FileExistsError:
            raise ImageExists(f"there is an image {self.name!r} already") from None
        try:
            new.unlink()
            sync(self.images.folder)
        except BaseException as error:  # the caller is told that there is no such image, so there must be none
            self._take_back(final, error)
            raise

    def _take_back(self, final: Path, error: BaseException) -> None:
        """Raises StoreUnusable where the disk fails again: the image is there, whole, and may not outlive a crash."""
        try:
            final.unlink(missing_ok=True)
        except OSError as second:
            text = f"{self.images.store}: {error}; image {self.name} is there all the same, perhaps not after a crash"
            hint = f"gcr rm {self.name} {at(self.images.store)}"
            raise StoreUnusable(f"{text} of the machine, and could not be removed: {second}", hint=hint) from error

    def _mark_as_pulled(self, pulled: bool) -> None:
        mark = self.images.store / pulled_path(self.name)
        if pulled:
            write_file(mark, b"")
        else:
            mark.unlink(missing_ok=True)  # an earlier image of this name may have left one

    def withdraw(self) -> None:
        """Removes the file `<name>.json.new` unless another process has claimed the name since."""
        unclaim(self.fd, self.images.store / claim_path(self.name))


@contextmanager
def held(images: Images, name: str) -> Iterator[Claim]:
    """Claims a name: no other process writes anything under it within the block.

    Raises ImageExists if another process holds the name, StoreUnusable, OSError.
    """
    new = images.store / claim_path(name)
    lock = Held(os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    try:
        claim(lock.fd, new, name)
        rehearse_publishing(new, images.folder / f"{name}{PROBE}")
        yield Claim(images, name, lock.fd)
    finally:
        lock.close()


@contextmanager
def claimed(images: Images, name: str) -> Iterator[Claim]:
    """Claims the name of an image that does not exist. Raises ImageExists, StoreUnusable, OSError."""
    with held(images, name) as claim:
        if images.path(name).exists():
            hint = f"another name, or gcr rm {name} {at(images.store)}"
            raise ImageExists(f"there is an image {name!r} already", hint=hint)
        yield claim
