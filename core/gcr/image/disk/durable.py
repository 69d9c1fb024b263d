"""Writes and removes files so that the result outlives a crash."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from gcr.image.disk.failing import usable
from gcr.imageerrors import StoreUnusable

NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)  # of link(), from file systems without hard links


def rehearse_publishing(file: Path, probe: Path) -> None:
    """Tries what `Claim.publish` will do and not every file system can: a hard link, and a sync of the folder.

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
    """Writes a file anew, and syncs it. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        write_synced(fd, data)
    finally:
        os.close(fd)


def write_synced(fd: int, data: bytes) -> None:
    """Writes all bytes, and syncs the file. Raises OSError."""
    write_all(fd, data)
    os.fsync(fd)


def write_all(fd: int, data: bytes) -> None:
    """Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def sync_images(store: Path) -> None:
    """Makes the published images of the store in this folder outlive a crash. Raises StoreUnusable."""
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
    """Removes a file. Returns the bytes freed: 0 for a folder, which gcr did not make and leaves."""
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
