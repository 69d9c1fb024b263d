"""A store elsewhere in a folder, and so a store of this machine: other processes may use it during a push.

So a push into it is a commit like any other (store/claim.py). It holds the store's lock and the claim of the image's
name from before the first look at the image until the end.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from gcr.errors import UnsafeRuntime
from gcr.image.crypto.cipher import PLAIN, Cipher
from gcr.image.disk.durable import sync, sync_file, write_all, write_file
from gcr.image.disk.failing import usable
from gcr.image.disk.regular import bytes_at, open_file
from gcr.image.files.names import manifest_path
from gcr.image.pack.format import UNFINISHED, Pack
from gcr.image.remote.remote import Remote, pack_path, parsed
from gcr.image.store.claim import Claim
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, ImageExists, StoreUnusable


def remote_at(url: str, cipher: Cipher = PLAIN) -> Remote:
    """Returns the store at a URL. Raises UsageError, LibraryMissing."""
    return Folder(url, cipher) if parsed(url).scheme == "file" else Remote(url, cipher)


class Folder(Remote):
    """A store in a folder. Methods that write are called within `used`, and raise StoreUnusable for each OSError."""

    _store: Store
    _claim: Claim

    def __init__(self, url: str, cipher: Cipher = PLAIN) -> None:
        super().__init__(url, cipher)
        self._path = Path(unquote(parsed(url).path))

    @contextmanager
    def used(self, name: str) -> Iterator[None]:
        """Keeps every file within the block, and holds the claim of this name.

        Raises WrongKey, Damaged, WrongImage, StoreUnusable; ImageExists if another process holds the claim.
        """
        with usable(self._path):
            if self._path.exists() and not self._path.is_dir():
                raise StoreUnusable(f"{self.url} cannot be used: it is no folder")
            self._store = store = self._opened()
            store.sweep()
            with store.used(), store.held(name) as self._claim:
                try:
                    yield
                finally:
                    self._claim.withdraw()

    def _opened(self) -> Store:
        """Raises StoreUnusable for a folder that other users may read or write, WrongKey, Damaged, WrongImage."""
        try:
            return Store(self._path, self.cipher)
        except UnsafeRuntime as error:
            text = f"{self.url} cannot be used: {error.message}; a store belongs to one user"
            hint = f"a folder in it that gcr may make, such as {self.url}/gcr-{os.getuid()}"
            raise StoreUnusable(text, hint=hint) from error

    def has(self, pack: Pack) -> bool:
        """Syncs a pack that is there, since its writer may have died before. Raises Damaged, WrongImage."""
        with usable(self._path):
            if not self._store.packs.has(pack):
                return False
            path = self._path / pack_path(pack)
            try:
                sync_file(path)
            except OSError:  # the next sync would succeed even if the disk lacks bytes
                self._store.packs.distrust(path)
                raise
        return True

    def write_pack(self, pack: Pack, data: Iterable[bytes], part: int, at_once: int) -> None:
        """Writes a pack under a name that the clean-up knows, then gives it its own."""
        path = self._store.packs.folder / f"{os.urandom(16).hex()}{UNFINISHED}"
        with usable(self._path):
            try:
                _write_new(path, data)
                self._store.packs.take(path, pack)
            finally:
                path.unlink(missing_ok=True)
            sync(self._store.packs.folder)

    # A pipe, link or device in the place of a file is damage: no reader waits for it or reads through it.

    def _whole(self, path: str, most: int) -> bytes:
        with self._file(path) as fd:
            found = bytes_at(fd, 0, min(os.fstat(fd).st_size, most) + 1)
        if len(found) > most:
            raise Damaged.of(self.address(path), f"it has more than {most} bytes")
        return bytes(found)

    def _length(self, path: str) -> int:
        with self._file(path) as fd:
            return os.fstat(fd).st_size

    def _range(self, path: str, at: int, size: int) -> memoryview:
        with self._file(path) as fd:
            return bytes_at(fd, at, size)

    def _refuse_nowhere(self, error: FileNotFoundError) -> None:
        self._path.stat()

    @contextmanager
    def _file(self, path: str) -> Iterator[int]:
        try:
            fd = open_file(self._path / path)
        except Damaged as error:
            raise Damaged.of(self.address(path), "it is no regular file") from error
        try:
            yield fd
        finally:
            os.close(fd)

    def claim(self, name: str, manifest: bytes) -> None:
        """Does nothing: `used` has claimed the name."""

    def release(self, name: str) -> None:
        """Does nothing: `used` removes the claim at its end."""

    def publish(self, name: str, manifest: bytes) -> bool:
        store, there = self._store, self._path / manifest_path(name)
        with usable(self._path):
            sync(store.packs.folder)  # also for packs of other writers
            if there.exists():
                sync(store.images.folder)
                return False
            store.packs.refuse_distrusted(store.images.manifest_of(name, manifest).packs)
            try:
                self._claim.publish(manifest, pulled=True)
            except ImageExists:
                return False
        return True

    def write(self, path: str, data: bytes) -> None:
        with usable(self._path):
            write_file(self._path / path, data)


def _write_new(path: Path, data: Iterable[bytes]) -> None:
    """Writes a new file, and syncs it. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        for piece in data:
            write_all(fd, piece)
        os.fsync(fd)
    finally:
        os.close(fd)
