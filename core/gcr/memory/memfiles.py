"""The files of arena segments: sealed memory files with pages that exist."""

import errno
import fcntl
import os
from contextlib import suppress

from gcr.errors import RolledBack
from gcr.memory.addresses import HUGE_PAGE
from gcr.memory.hostmemory import free_huge_bytes

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
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
        fill(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


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
    """Makes the pages of the file exist. Raises OSError."""
    os.posix_fallocate(fd, 0, size)


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
