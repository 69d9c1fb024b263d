"""Reads the files of a store. A folder, link or pipe in the place of a file is damage; no reader waits for it."""

import errno
import os
import stat
from pathlib import Path

from gcr.faults import reach
from gcr.image.disk.failing import readable
from gcr.imageerrors import Damaged


def open_file(path: Path) -> int:
    """Returns a descriptor to read. Raises Damaged for a folder, link or pipe, where a reader might wait; OSError."""
    reach(f"store.read{path.suffix}")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise _no_file(path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _no_file(path)
    return fd


def _no_file(path: Path) -> Damaged:
    return Damaged.of(path, "it is no regular file")


def read_file(path: Path, most: int) -> bytes:
    """Returns all bytes of a file that has `most` or fewer. Raises OSError; Damaged, also for one that grows."""
    with os.fdopen(open_file(path), "rb") as file, readable(path):
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise Damaged.of(path, f"it has more than {most} bytes")
        if len(data := file.read(size + 1)) > size:  # memory for `most` bytes can cost more than the reading
            raise Damaged.of(path, "it grows while it is read")
        return data


def bytes_at(fd: int, at: int, size: int) -> memoryview:
    """Returns `size` bytes, or fewer at the end of the file. Raises OSError."""
    found, done = memoryview(bytearray(size)), 0
    while got := os.preadv(fd, [found[done:]], at + done):
        done += got
    return found[:done]
