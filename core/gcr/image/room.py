"""Room on a disk for a file, made before it is written."""

import ctypes
import os

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate64
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def allocate(fd: int, at: int, size: int) -> None:
    """The file is at least `at` + `size` bytes long then, what was not written of it zero. Raises OSError.

    Not `os.posix_fallocate`, which writes to every block where the file system cannot do it at once.
    """
    if _fallocate(fd, 0, at, size) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
