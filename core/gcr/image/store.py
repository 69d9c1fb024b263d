"""The store: images by name, and the chunks they share.

Who reads from it or writes to it holds its lock shared, who cleans it up alone; the kernel takes a lock back from
whoever dies. So a pack that a writer found its chunk in stays until the writer is done, and one that nobody names goes
when nobody is at work.

A commit, in this order: packs synced and renamed, their directory synced; references synced; manifest synced under the
name of one that is being written; its directory synced; the manifest linked to its own name, which fails where there is
one; the directory synced. A crash leaves the image whole, or no image and files that the next clean-up takes away.
"""

import errno
import fcntl
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gcr.errors import Damaged, ImageExists, NoSuchImage, StoreBusy, StoreUnusable, UsageError, WrongImage
from gcr.image import references
from gcr.image.chunks import cut
from gcr.image.manifest import SUFFIX as MANIFEST
from gcr.image.manifest import Manifest
from gcr.image.pack import DISTRUSTED, FILE, UNFINISHED, Pack, PackReader
from gcr.image.pack import SUFFIX as PACK
from gcr.image.references import SUFFIX as CHUNKS
from gcr.image.references import Reference
from gcr.runtime import own_directory

log = logging.getLogger(__name__)

NAME = re.compile(r"[a-z][a-z0-9._-]{0,62}\Z")
NEW = ".json.new"
OURS = re.compile(r"([a-z][a-z0-9._-]{0,62})\.(?:json\.new|chunks)\Z")  # beside the manifest of the image so called
MARK = "gcr-store"  # an empty file: everything else here is ours
POLL = 0.05


@dataclass(slots=True)
class Store:
    """Thread-safe, and several processes may use one directory."""

    path: Path

    def __post_init__(self) -> None:
        """Makes what is missing, and it stays after a crash. Raises StoreUnusable, UnsafeRuntime."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        own_directory(self.path)
        with usable(self.path):
            self._mark()
        for folder in (self.packs, self.images):
            missing += [] if folder.exists() else [folder]
            own_directory(folder)
        with usable(self.path):
            for folder in missing:
                sync(folder.parent)

    def _mark(self) -> None:
        """Only a folder of ours is cleaned up. Raises StoreUnusable for one with somebody's files in it."""
        mark = self.path / MARK
        if mark.exists():
            return
        if any(entry.name != MARK for entry in self.path.iterdir()):
            raise StoreUnusable(f"{self.path} is no store of gcr's, and not empty", hint="another folder as --store")
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        sync(self.path)

    @property
    def packs(self) -> Path:
        return self.path / "packs"

    @property
    def images(self) -> Path:
        return self.path / "images"

    # ---- looking ------------------------------------------------------------------------------------------------

    def names(self) -> Sequence[str]:
        found = (path.name.removesuffix(MANIFEST) for path in self.images.glob(f"*{MANIFEST}"))
        return sorted(name for name in found if NAME.match(name))

    def readable(self) -> Iterator[Manifest]:
        for name in self.names():
            try:
                yield self.manifest(name)
            except (Damaged, WrongImage, NoSuchImage) as error:
                log.warning("%s", error)

    def manifest(self, name: str) -> Manifest:
        """Raises NoSuchImage, WrongImage, Damaged, UsageError."""
        path = self._manifest_path(name)
        try:
            found = Manifest.from_bytes(path.read_bytes(), path)
        except FileNotFoundError:
            raise NoSuchImage(f"no image {name!r}", hint="gcr images") from None
        if found.name != name:
            raise Damaged.of(path, f"it is the manifest of {found.name}")
        return found

    def references(self, manifest: Manifest) -> Sequence[Reference]:
        """Raises Damaged."""
        path = self.images / f"{manifest.name}{CHUNKS}"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise Damaged.of(path, "it is not there") from None
        if references.digest(data) != manifest.chunks:
            raise Damaged.of(path, "it is not what was written")
        found = references.from_bytes(data)
        if len(found) != sum(1 for _ in chunk_sizes(manifest)):
            raise Damaged.of(path, "it has another number of chunks than the image")
        return found

    # ---- locks --------------------------------------------------------------------------------------------------

    @contextmanager
    def used(self) -> Iterator[None]:
        """Nothing that is there goes within the block."""
        with locked(self.path, fcntl.LOCK_SH, None):
            yield

    # ---- writing ------------------------------------------------------------------------------------------------

    @contextmanager
    def claimed(self, name: str) -> Iterator[int]:
        """The descriptor of a manifest that is being written, nobody else's. Raises ImageExists, OSError."""
        final, new = self._manifest_path(name), self.images / f"{name}{NEW}"
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _claim(fd, new, name)
            if final.exists():
                raise ImageExists(f"there is an image {name!r} already", hint=f"gcr rm {name}")
            yield fd
        finally:
            os.close(fd)

    def write_references(self, name: str, data: bytes) -> None:
        """Of an image that was claimed. Raises OSError."""
        fd = os.open(self.images / f"{name}{CHUNKS}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_synced(fd, data)
        finally:
            os.close(fd)

    def publish(self, manifest: Manifest, claim: int) -> None:
        """Everything that it names is synced. Raises ImageExists, OSError."""
        final, new = self._manifest_path(manifest.name), self.images / f"{manifest.name}{NEW}"
        os.ftruncate(claim, 0)
        _write_synced(claim, manifest.to_bytes())
        sync(self.images)
        try:
            os.link(new, final)
        except FileExistsError:
            raise ImageExists(f"there is an image {manifest.name!r} already") from None
        new.unlink()
        sync(self.images)

    def open_pack(self, pack: Pack) -> PackReader:
        """Raises Damaged, WrongImage, OSError."""
        path = self.packs / f"{pack.id}{PACK}"
        try:
            return PackReader(path, pack.seal)
        except FileNotFoundError:
            raise Damaged.of(path, "it is not there") from None

    def open_packs(self) -> Iterator[PackReader]:
        """All that can be trusted; the caller's to close."""
        for path in sorted(self.packs.glob(f"*{PACK}")):
            if path.with_suffix(DISTRUSTED).exists():
                continue
            try:
                yield PackReader(path)
            except (Damaged, WrongImage) as error:
                log.warning("%s", error)

    def distrust(self, pack: Path) -> None:
        """It was found damaged: no image that is written from now on has chunks in it."""
        with suppress(OSError):  # a disk that takes no word of it takes no image either
            os.close(os.open(pack.with_suffix(DISTRUSTED), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    # ---- leaving ------------------------------------------------------------------------------------------------

    def remove(self, names: Iterable[str]) -> int:
        """These images, and what nobody else needs of theirs: bytes freed, fewer while others are at work.

        All or none are known: raises NoSuchImage before anything is removed. Beside an image that cannot be read no
        chunk is taken away: who knows what that one needs.
        """
        paths = [self._manifest_path(name) for name in names]
        for path in paths:
            if not path.exists():
                raise NoSuchImage(f"no image {path.name.removesuffix(MANIFEST)!r}", hint="gcr images")
        for path in paths:
            path.unlink(missing_ok=True)
        sync(self.images)
        try:
            return self.clean(patience=0.0)
        except (StoreBusy, Damaged, WrongImage) as error:
            log.info("%s: not cleaned up: %s", self.path, error)
            return 0

    def clean(self, patience: float = 0.0) -> int:
        """Takes away what writers that died have left, and what no image needs: bytes freed.

        Raises StoreBusy; Damaged and WrongImage where an image cannot be read, whose packs nobody knows then.
        """
        with locked(self.path, fcntl.LOCK_EX, patience):
            freed = sum(map(_unlink, self._unfinished()))
            manifests = [self.manifest(name) for name in self.names()]
            needed = {pack.id for manifest in manifests for pack in manifest.packs}
            packs = ((FILE.match(path.name), path) for path in self.packs.iterdir())
            return freed + sum(_unlink(path) for ours, path in packs if ours and ours[1] not in needed)

    def sweep(self) -> None:
        """A look at what writers that died have left, and it goes where nobody is at work."""
        with suppress(StoreBusy):
            if any(self._unfinished()):
                with locked(self.path, fcntl.LOCK_EX, 0.0):
                    for path in self._unfinished():
                        _unlink(path)

    def _unfinished(self) -> Iterator[Path]:
        names = set(self.names())
        yield from self.packs.glob(f"*{UNFINISHED}")
        for path in self.images.iterdir():
            ours = OURS.match(path.name)
            if ours and (ours[1] not in names or path.name.endswith(NEW)):
                yield path

    def _manifest_path(self, name: str) -> Path:
        return self.images / f"{checked_name(name)}{MANIFEST}"


def checked_name(name: str) -> str:
    """Raises UsageError for what cannot be the name of an image."""
    if not NAME.match(name):
        raise UsageError(f"{name!r} is no name of an image: {NAME.pattern}")
    return name


@contextmanager
def locked(store: Path, how: int, patience: float | None) -> Iterator[None]:
    """The lock of the store in this folder. Raises StoreBusy after so many seconds, None: waits; OSError."""
    fd = os.open(store / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _lock(fd, how, patience)
        yield
    finally:
        os.close(fd)


def chunk_sizes(manifest: Manifest) -> Iterator[int]:
    """In the order of the references."""
    for process in manifest.processes:
        for handle in process.table.handles:
            yield from (size for _, size in cut(handle.spec.size, manifest.chunk_bytes))


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Raises StoreUnusable for what the file system says."""
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "no error code")
        raise StoreUnusable(f"the store {path} cannot be used: {error} ({name})") from error


def _write_synced(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.fsync(fd)


def _claim(fd: int, path: Path, name: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink and os.path.samestat(os.fstat(fd), path.lstat()):
            return
    except (BlockingIOError, FileNotFoundError):  # somebody has it, or has just published it
        pass
    raise ImageExists(f"an image {name!r} is being written just now") from None


def sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _lock(fd: int, how: int, patience: float | None) -> None:
    end = None if patience is None else time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(fd, how | (0 if end is None else fcntl.LOCK_NB))
        except BlockingIOError:
            if end is None or time.monotonic() >= end:
                raise StoreBusy("others are at work in the store") from None
            time.sleep(POLL)


def _unlink(path: Path) -> int:
    """Bytes that are free now."""
    with suppress(FileNotFoundError):
        size = path.lstat().st_size
        path.unlink()
        return size
    return 0
