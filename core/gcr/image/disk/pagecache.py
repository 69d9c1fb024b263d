"""Asks the kernel which bytes of a file are in the page cache. It reads nothing, and so brings nothing there."""

import ctypes

_CACHESTAT = 451  # the number of the call on each architecture of 64 bits that gcr runs on; Linux 6.5 and later
_PAGE = 4096


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


class _Pages(ctypes.Structure):
    """Source: struct cachestat of linux/mman.h."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "written", "evicted", "evicted_of_late"))


_syscall = ctypes.CDLL(None, use_errno=True).syscall


def is_cached(fd: int, at: int, size: int) -> bool:
    """Returns whether all of the bytes are in the page cache; False where the kernel does not tell.

    at: a multiple of the page size
    """
    asked, found = _Range(at, size), _Pages()
    answer = _syscall(_CACHESTAT, fd, ctypes.byref(asked), ctypes.byref(found), 0)
    return bool(answer == 0 and found.cached * _PAGE >= size)
