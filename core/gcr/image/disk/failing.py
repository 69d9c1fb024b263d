"""The meaning of a disk's errors for a store."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gcr import units
from gcr.errors import NoRoom
from gcr.imageerrors import Damaged, StoreUnusable

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Raises StoreUnusable for each OSError of the file system."""
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "no error code")
        hint = "make room on its disk, or name another store" if error.errno in FULL else ""
        raise StoreUnusable(f"the store {path} cannot be used: {error} ({name})", hint=hint) from error


@contextmanager
def with_room(path: Path, left: Callable[[], int]) -> Iterator[None]:
    """Raises NoRoom where the file system has become full. `left`: returns the bytes that were still to be written."""
    try:
        yield
    except (OSError, StoreUnusable) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and cause.errno in FULL:
            raise _full(path, left(), cause) from error
        raise


def _full(path: Path, left: int, error: OSError) -> NoRoom:
    """A quota, and a lack of room for files, leave the number of bytes that are missing unknown."""
    missing = left - _free_bytes(path) if error.errno == errno.ENOSPC else 0
    short = f", {units.size(missing)} short" if missing > 0 else ""
    coming = f", and {units.size(left)} were still to come" if left else ""
    return NoRoom(
        f"the store {path} is full{short}{coming} ({error.strerror})",
        missing=missing if missing > 0 else None,
        hint="gcr prune, or another disk as the setting store; the same again goes on where this ended",
    )


def _free_bytes(path: Path) -> int:
    there = next(each for each in (path, *path.parents) if each.exists())
    found = os.statvfs(there)
    return found.f_bavail * found.f_frsize


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raises Damaged for EIO, a sector that cannot be read. Other errors tell nothing of the bytes, and pass."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO:
            raise Damaged.of(path, f"it cannot be read: {error.strerror} (EIO)") from error
        raise
