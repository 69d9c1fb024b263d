"""The meaning of a disk's errors for a store."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gcr.imageerrors import Damaged, StoreUnusable


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Raises StoreUnusable for each OSError of the file system."""
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "no error code")
        raise StoreUnusable(f"the store {path} cannot be used: {error} ({name})") from error


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raises Damaged for EIO, a sector that cannot be read. Other errors tell nothing of the bytes, and pass."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO:
            raise Damaged.of(path, f"it cannot be read: {error.strerror} (EIO)") from error
        raise
