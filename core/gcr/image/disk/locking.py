"""The lock of a store, and the claim of an image's name: both are taken back by the kernel from a process that dies."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gcr.errors import ImageExists, StoreBusy

LOCK = "lock"
POLL = 0.05


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
