"""What arena segments are made of: sealed memory files that are really there."""

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
    """A descriptor that should be an arena segment is something else, or of another size, or not sealed."""

    code = "not_a_segment"


def hold_still(fd: int) -> int:
    """A descriptor of the same file, the caller's: until it is closed, by death too, nobody of us writes there anew.

    Held by the kernel, so it needs nobody's books: neither the daemon's nor the worker's that has the segment. Raises
    OSError.
    """
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(own, fcntl.LOCK_SH)
    except BaseException:
        os.close(own)
        raise
    return own


def end_hold(held: int) -> None:
    """Ends what `hold_still` gave; without this, neither before it is closed nor while the file is mapped by it."""
    fcntl.flock(held, fcntl.LOCK_UN)


def is_held_still(fd: int) -> bool:
    """Whether somebody does: see `hold_still`. Raises OSError."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(own)
    return False


def filled_memfd(size: int) -> int:
    """A memfd of `size` bytes that are really there; in huge pages when enough are free. Raises OSError."""
    if free_huge_bytes(HUGE_PAGE) >= size:
        with suppress(OSError):  # others take huge pages, too; ordinary ones serve as well
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
    """A memfd of `size` bytes that are there after `fill`; it may be handed to others before. Raises OSError."""
    fd = os.memfd_create("gcr-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def fill(fd: int, size: int) -> None:
    """Raises OSError."""
    os.posix_fallocate(fd, 0, size)


def checked_size(fd: int, expected: int | None) -> int:
    """The size of a descriptor that is a segment. Raises NotASegment."""
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
