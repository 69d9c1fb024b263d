"""The files of arena segments: sealed memory files with pages that exist."""

import errno
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gcr.errors import RolledBack
from gcr.memory import hostmap
from gcr.memory.addresses import HUGE_PAGE, round_up
from gcr.memory.hostmemory import free_huge_bytes

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
HUGE_AT_ONCE = 16 << 20  # bytes: meanwhile no other thread of the process maps or unmaps
SLOWEST_S = 0.03  # for these; each of 16 threads takes 0.006 s, and 0.014 s for small pages
HUGETLB = os.MFD_HUGETLB | os.MFD_HUGE_2MB
NO_MEMORY = frozenset({errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT, errno.EAGAIN})


class NotASegment(RolledBack):
    """A descriptor that should be a segment of host memory was something else: report it.

    It is none, has another size, or is not sealed.
    """

    code = "not_a_segment"


def hold_still(fd: int) -> int:
    """Returns a descriptor of the file, the caller's. Until it is closed, by death too, no worker reuses the segment.

    The kernel keeps the lock, so neither the daemon nor the worker needs a record of it. Raises OSError.
    """
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(own, fcntl.LOCK_SH)
    except BaseException:
        os.close(own)
        raise
    return own


def end_hold(held: int) -> None:
    """Ends the hold of `hold_still`, which else lasts while the descriptor is open or the file is mapped by it."""
    fcntl.flock(held, fcntl.LOCK_UN)


def is_held_still(fd: int) -> bool:
    """Tells whether a process holds the file still (`hold_still`). Raises OSError."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(own)
    return False


def filled_memfd(size: int) -> int:
    """Returns a memfd of `size` bytes with existing pages, huge ones where enough are free. Raises OSError."""
    if free_huge_bytes(HUGE_PAGE) >= size:
        with suppress(OSError):  # another process took them; ordinary pages serve as well
            return _filled(size, HUGETLB)
    return _filled(size, 0)


def _filled(size: int, flags: int) -> int:
    fd = promised_memfd(size, flags)
    try:
        with _mapped(fd, size) as address:
            fill_huge(fd, size, address)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def _mapped(fd: int, size: int) -> Iterator[int]:
    """Yields the address at which the file is mapped within the block. Raises OSError."""
    reserved = hostmap.reserve(size + HUGE_PAGE)
    try:
        address = round_up(reserved)
        hostmap.map_shared(address, size, fd)
        yield address
    finally:
        hostmap.unreserve(reserved, size + HUGE_PAGE)


def promised_memfd(size: int, flags: int = 0) -> int:
    """Returns a memfd of `size` bytes, which exist after `fill`; it may be handed on before. Raises OSError."""
    fd = os.memfd_create("gcr-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def fill(fd: int, size: int) -> None:
    """Makes the pages of a file exist. Raises OSError."""
    os.posix_fallocate(fd, 0, size)


def fill_huge(fd: int, size: int, address: int) -> None:
    """Makes the pages of a file exist, huge ones as far as the kernel makes them, and quickly. Raises OSError.

    Other threads of the process that map memory wait meanwhile, some milliseconds each time.

    address: where the file is mapped, from its begin on; a multiple of a huge page
    """
    for at in range(0, size, HUGE_AT_ONCE):
        began = time.monotonic()
        refused = _make_huge(fd, at, min(HUGE_AT_ONCE, size - at), address + at)
        if refused not in (0, errno.EAGAIN) or time.monotonic() - began > SLOWEST_S:
            break
    fill(fd, size)


def _make_huge(fd: int, at: int, size: int, address: int) -> int:
    """Makes huge pages in a part of the file; returns the error's number if the kernel refused. Raises OSError.

    The kernel makes a huge page where there is a small one. `fallocate` makes these: where memory is lacking, it fails,
    and an access would be a signal.
    """
    for first in range(at, at + size, HUGE_PAGE):
        os.posix_fallocate(fd, first, mmap.PAGESIZE)
    return hostmap.collapse(address, size)


def makes_huge_pages() -> bool:
    """Tells whether the kernel makes a huge page of a memory file now. Raises OSError."""
    fd = promised_memfd(HUGE_PAGE)
    try:
        with _mapped(fd, HUGE_PAGE) as address:
            return _make_huge(fd, 0, HUGE_PAGE, address) == 0
    finally:
        os.close(fd)


def checked_size(fd: int, expected: int | None) -> int:
    """Returns the size of a segment's descriptor. Raises NotASegment."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        size = os.fstat(fd).st_size
    except OSError as error:  # EINVAL: not a memfd
        raise NotASegment(f"descriptor {fd} is not a memfd: {error.strerror}") from error
    if not seals & fcntl.F_SEAL_SHRINK or seals & fcntl.F_SEAL_WRITE:
        raise NotASegment(f"descriptor {fd} is not sealed as a segment is (seals {seals:#x})")
    if size == 0 or size % HUGE_PAGE or expected not in (None, size):
        raise NotASegment(f"descriptor {fd} holds {size} bytes, not {expected}")
    return size
