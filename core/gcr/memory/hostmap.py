"""The memory calls that the arena needs and Python's mmap lacks: mapping at a chosen address."""

import ctypes
import mmap
import os

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_PROT_NONE = 0
_MADV_POPULATE_READ = 22  # Linux 5.14
_MADV_COLLAPSE = 25  # Linux 6.1
POPULATED_AT_ONCE = 16 << 20  # bytes: 16 threads enter so many in some 15 ms each
_NOTHING = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def reserve(size: int) -> int:
    """Reserves addresses without memory behind them. Raises OSError."""
    return _map(None, size, _PROT_NONE, _NOTHING, -1)


def map_shared(address: int, size: int, fd: int, writable: bool = True) -> None:
    """Maps a file's first `size` bytes at `address`, over the reservation there. Raises OSError."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    _map(address, size, protection, mmap.MAP_SHARED | _MAP_FIXED, fd)


def populate(address: int, size: int) -> None:
    """Enters the mapped pages into the page tables, as far as the kernel can; a later access enters the others.

    Works in pieces. The kernel holds the lock of the address space during a call, and once a thread waits to change the
    address space, for the stack of a new thread say, no other call begins until all calls under way have ended.
    """
    for offset in range(0, size, POPULATED_AT_ONCE):
        _madvise(address + offset, min(POPULATED_AT_ONCE, size - offset), _MADV_POPULATE_READ)


def collapse(address: int, size: int) -> int:
    """Has the kernel lay the mapped pages into huge ones, and make these for what lacks beside a page that is there.

    Unlike other huge pages these need no setting and no privilege. Returns 0, or the number of the error: EAGAIN if
    some of the pages were in use, else that there is no more to be had. Source: madvise(2), MADV_COLLAPSE.
    """
    return 0 if _madvise(address, size, _MADV_COLLAPSE) == 0 else ctypes.get_errno()


def blank(address: int, size: int) -> None:
    """Removes the memory at `address`; the addresses stay reserved. Raises OSError."""
    _map(address, size, _PROT_NONE, _NOTHING | _MAP_FIXED, -1)


def unreserve(address: int, size: int) -> None:
    if _munmap(address, size) != 0:
        raise _os_error("munmap")


def _map(address: int | None, size: int, protection: int, flags: int, fd: int) -> int:
    found: int | None = _mmap(address, size, protection, flags, fd, 0)
    if found is None or found == _FAILED:
        raise _os_error("mmap")
    return found


def _os_error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
