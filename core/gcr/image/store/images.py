"""Reads the images of a store: their names, manifests, references and hashes."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from gcr.image.crypto.cipher import Cipher
from gcr.image.disk.failing import usable
from gcr.image.disk.regular import read_file
from gcr.image.files.hashes import ImageHashes
from gcr.image.files.manifest import SUFFIX as MANIFEST
from gcr.image.files.manifest import Manifest, at, none_called
from gcr.image.files.names import NAME, manifest_path, pulled_path
from gcr.image.files.references import References
from gcr.image.files.smallfiles import (
    MOST_MANIFEST,
    SmallFile,
    files_beside,
    hashes_file,
    manifest_of,
    references_file,
)
from gcr.imageerrors import Damaged, NoSuchImage, WrongImage
from gcr.listing import listed

log = logging.getLogger(__name__)


class Images(Struct, frozen=True):
    """The images of one store. Thread-safe. `store`: the store's folder; `pulse`: see Store."""

    store: Path
    cipher: Cipher
    pulse: Callable[[], object]

    @property
    def folder(self) -> Path:
        return self.store / "images"

    def path(self, name: str) -> Path:
        """Returns where the manifest of this image is. Raises UsageError."""
        return self.store / manifest_path(name)

    def names(self) -> Sequence[str]:
        """Raises StoreUnusable."""
        with usable(self.store):
            found = [path.name.removesuffix(MANIFEST) for path in listed(self.folder, MANIFEST)]
        return [name for name in found if NAME.match(name)]

    def readable(self) -> Iterator[Manifest]:
        """Yields the manifests that can be read; logs the others."""
        for name in self.names():
            try:
                yield self.manifest(name)
            except (Damaged, WrongImage, NoSuchImage) as error:
                log.warning("%s", error)

    def pack_ids(self, names: Iterable[str]) -> set[str]:
        """Returns the ids of these images' packs. Raises Damaged, WrongImage, OSError."""
        found: set[str] = set()
        for name in names:
            with suppress(NoSuchImage):  # another process has removed it just now
                found |= {pack.id for pack in self.manifest(name).packs}
        return found

    def manifest(self, name: str) -> Manifest:
        """Raises NoSuchImage, WrongImage, Damaged, UsageError."""
        return self.manifest_of(name, self.stored(name))

    def manifest_of(self, name: str, stored: bytes) -> Manifest:
        """Returns the manifest that `stored`, the bytes of its file, says. Raises WrongImage, Damaged, UsageError."""
        return manifest_of(name, stored, self.cipher, self.path(name))

    def stored(self, name: str) -> bytes:
        """Returns the bytes of the manifest's file. Raises NoSuchImage, Damaged, UsageError."""
        try:
            data = read_file(self.path(name), MOST_MANIFEST)
        except FileNotFoundError:
            raise none_called(name, self.names, self.store) from None
        self.pulse()
        return data

    def references(self, manifest: Manifest) -> References:
        """Raises Damaged; NoSuchImage if the image was removed after its manifest was read."""
        return References(self.read_beside(manifest, references_file(manifest))[1])

    def hashes(self, manifest: Manifest) -> ImageHashes:
        """Raises Damaged; NoSuchImage if the image was removed after its manifest was read."""
        return ImageHashes.from_bytes(self.read_beside(manifest, hashes_file(manifest))[1])

    def stored_beside(self, manifest: Manifest) -> Mapping[str, bytes]:
        """Returns the files of references and hashes by their paths, compared with the manifest.

        Raises Damaged; NoSuchImage if the image was removed after its manifest was read.
        """
        return {file.path: self.read_beside(manifest, file)[0] for file in files_beside(manifest)}

    def read_beside(self, manifest: Manifest, file: SmallFile) -> tuple[bytes, bytes]:
        """Returns the bytes of a file, and what they say once decrypted.

        Raises Damaged; NoSuchImage if the image was removed after its manifest was read.
        """
        path, stored = self.store / file.path, None
        try:
            with suppress(FileNotFoundError):
                stored = read_file(path, file.most)
            said = file.said(stored, self.cipher, path)
        except Damaged:
            self._refuse_removed(manifest)
            raise
        assert stored is not None
        self.pulse()
        return stored, said

    def _refuse_removed(self, manifest: Manifest) -> None:
        """Raises NoSuchImage if this image is gone: a reader's lock does not keep an image from being removed."""
        with suppress(Damaged, WrongImage):
            if not self.is_there(manifest):
                raise NoSuchImage(f"image {manifest.name!r} was removed just now", hint=f"gcr images {at(self.store)}")

    def is_there(self, manifest: Manifest) -> bool:
        """Returns False also if another image has the name by now. Raises Damaged, WrongImage."""
        try:
            return self.manifest(manifest.name) == manifest
        except NoSuchImage:
            return False

    def is_pulled(self, name: str) -> bool:
        """Returns whether the image came from elsewhere; its hashes are then vouched for by the sender alone."""
        return os.path.lexists(self.store / pulled_path(name))
