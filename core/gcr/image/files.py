"""The files of a store: what they are called, the locks on them, and what outlives a crash."""

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gcr.errors import ImageExists, StoreBusy, StoreUnusable, UsageError
from gcr.image.hashes import SUFFIX as HASHES
from gcr.image.manifest import SUFFIX as MANIFEST
from gcr.image.references import SUFFIX as CHUNKS

PULLED = ".pulled"
NEW = f"{MANIFEST}.new"  # of a manifest that is being written
PROBE = f"{MANIFEST}.link"
NAME = re.compile(r"[a-z][a-z0-9._-]{0,62}\Z")
LOCK = "lock"
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)  # what file systems without them say to link()
POLL = 0.05


def checked_name(name: str) -> str:
    """Raises UsageError for what cannot be the name of an image."""
    if not isinstance(name, str) or not NAME.match(name):
        shown = NAME.pattern.removesuffix(r"\Z")
        raise UsageError(f"{name!r} is no name of an image: {shown}")
    return name


def manifest_path(name: str) -> str:
    """In its store. Raises UsageError."""
    return f"images/{checked_name(name)}{MANIFEST}"


def references_path(name: str) -> str:
    """In its store. Raises UsageError."""
    return f"images/{checked_name(name)}{CHUNKS}"


def hashes_path(name: str) -> str:
    """In its store. Raises UsageError."""
    return f"images/{checked_name(name)}{HASHES}"


def pulled_path(name: str) -> str:
    """In its store: there where the image came from elsewhere. Raises UsageError."""
    return f"images/{checked_name(name)}{PULLED}"


def claim_path(name: str) -> str:
    """In its store: who writes anything under this name has it. Raises UsageError."""
    return f"images/{checked_name(name)}{NEW}"


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Raises StoreUnusable for what the file system says."""
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "no error code")
        raise StoreUnusable(f"the store {path} cannot be used: {error} ({name})") from error


@contextmanager
def locked(store: Path, how: int, patience: float | None) -> Iterator[None]:
    """The lock of the store in this folder. Raises StoreBusy after so many seconds, None: waits; OSError."""
    fd = _opened(store / LOCK, how)
    try:
        _lock(fd, how, patience)
        yield
    finally:
        os.close(fd)


def _opened(lock: Path, how: int) -> int:
    """On a disk that cannot be written to whoever only reads locks what is there."""
    try:
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS or how != fcntl.LOCK_SH:
            raise
    return os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _lock(fd: int, how: int, patience: float | None) -> None:
    end = None if patience is None else time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(fd, how | (0 if end is None else fcntl.LOCK_NB))
        except BlockingIOError:
            if end is None or time.monotonic() >= end:
                raise StoreBusy("others are at work in the store") from None
            time.sleep(POLL)


def claim(fd: int, path: Path, name: str) -> None:
    """Of a manifest that is being written, by this descriptor. Raises ImageExists where it is somebody else's."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_named(fd, path):
            return
    except BlockingIOError:
        pass
    raise ImageExists(f"an image {name!r} is being written just now") from None  # or it was just published


def unclaim(fd: int, path: Path) -> None:
    """The other way round; what somebody else has claimed since stays."""
    if is_named(fd, path):
        path.unlink()


def is_named(fd: int, path: Path) -> bool:
    """The file that this descriptor is of has still this name."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def rehearse_publishing(file: Path, probe: Path) -> None:
    """What not every file system can do, and `Store.publish` will: found out before anything is written.

    Raises StoreUnusable, OSError.
    """
    probe.unlink(missing_ok=True)
    try:
        os.link(file, probe)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        text = f"the file system of {file.parent} has no hard links, which name an image: {error.strerror}"
        raise StoreUnusable(text, hint="another folder as --store") from error
    probe.unlink()
    sync(file.parent)


def write_file(path: Path, data: bytes) -> None:
    """Anew, synced. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        write_synced(fd, data)
    finally:
        os.close(fd)


def write_synced(fd: int, data: bytes) -> None:
    """Raises OSError."""
    write_all(fd, data)
    os.fsync(fd)


def write_all(fd: int, data: bytes) -> None:
    """Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def sync_images(store: Path) -> None:
    """Of the store in this folder: what was published outlives a crash. Raises StoreUnusable."""
    with usable(store):
        sync(store / "images")


def sync(directory: Path) -> None:
    """Raises OSError."""
    _sync(directory, os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Raises OSError."""
    _sync(path, os.O_NOFOLLOW)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def unlink(path: Path) -> int:
    """Bytes that are free now; none of a folder, which is not ours."""
    with suppress(FileNotFoundError, IsADirectoryError):
        size = path.lstat().st_size
        path.unlink()
        return size
    return 0


def size_of(path: Path) -> int:
    """Returns how many bytes `unlink` would free."""
    with suppress(FileNotFoundError):
        found = path.lstat()
        return 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    return 0
