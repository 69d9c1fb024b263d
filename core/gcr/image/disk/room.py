"""Room on a disk: reserved for a file before it is written, and counted before a job is stopped for an image."""

import ctypes
import os
from pathlib import Path

_TMPFS, _RAMFS = 0x01021994, 0x858458F6  # f_type, of linux/magic.h
_PUNCH_HOLE = 1 | 2  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, of linux/falloc.h
_WORDS = 32  # of a struct statfs, and more; f_type is the first
_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = _libc.fallocate64
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def allocate(fd: int, at: int, size: int) -> None:
    """Makes the file `at` + `size` bytes long or longer; unwritten bytes are zero. Raises OSError.

    `os.posix_fallocate` would write to every block on a file system that cannot do this at once.
    """
    _allocated(fd, 0, at, size)


def empty(fd: int, size: int) -> None:
    """Gives the first `size` bytes of a file back to the system: they are zeros from now on. Raises OSError.

    Other threads run meanwhile. `mmap.madvise` would keep Python's lock: 50 ms for 128 MiB in memory.
    """
    _allocated(fd, _PUNCH_HOLE, 0, size)


def _allocated(fd: int, mode: int, at: int, size: int) -> None:
    """Raises OSError."""
    if _fallocate(fd, mode, at, size) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def is_memory(fd: int) -> bool:
    """Returns whether the file lies in memory and on no disk, as /dev/shm; False where the kernel does not tell."""
    found = (ctypes.c_long * _WORDS)()
    return _libc.fstatfs(fd, found) == 0 and found[0] in (_TMPFS, _RAMFS)


def free_bytes(folder: Path) -> int | None:
    """Returns how much this process may write there; None where the file system does not tell. Raises OSError."""
    found = os.statvfs(folder)
    blocks = found.f_bavail if os.geteuid() else found.f_bfree  # some are kept for root
    return blocks * found.f_frsize if found.f_blocks else None
