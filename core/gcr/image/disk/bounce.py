"""Bounce buffers: memory through which images are read from a disk and written to one.

A request past the page cache names the pages of its memory, and can name only so many. A memfd's pages are small and
scattered on a machine that has run for a while: the disk then gets small requests, and is slow. A bounce buffer has
huge pages if the system has some. It is used again while it is in the processor's cache, where virtual disks copy
faster. docs/benchmarks-history.md has the gain of each.
"""

import ctypes
import mmap
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import accumulate, pairwise
from queue import LifoQueue
from threading import local
from weakref import finalize

from gcr.memory.addresses import HUGE_PAGE, round_up

_OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Bounce(local):
    """One buffer for each thread, as large as the largest that it asked for."""

    def __init__(self) -> None:
        self._buffer = memoryview(b"")

    def buffer(self, size: int) -> memoryview:
        """Returns `size` bytes that begin with a page; they overwrite this thread's earlier ones. Raises OSError."""
        if size > len(self._buffer):
            self._buffer = huge_buffer(size)
        return self._buffer[:size]


class Recycled:
    """Buffers that are used again once no memoryview of them is left: new memory costs as much as a copy.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._free = defaultdict[int, deque[memoryview]](deque)  # by their size

    def buffer(self, size: int) -> memoryview:
        """Returns `size` bytes, whatever they are. Raises OSError."""
        whole = 1 << (size - 1).bit_length()  # so there are few sizes
        free = self._free[whole]
        try:
            memory = free.pop()
        except IndexError:
            memory = huge_buffer(whole)[:whole] if whole >= HUGE_PAGE else memoryview(mmap.mmap(-1, whole, _OWN))
        lent = _lent(whole).from_buffer(memory)
        finalize(lent, free.append, memory).atexit = False
        return memoryview(lent).cast("B")[:size]


@cache
def _lent(size: int) -> "type[ctypes.Array[ctypes.c_ubyte]]":
    """Returns an array type of which objects can have weak references."""
    return type("_Lent", (ctypes.c_ubyte * size,), {})


def huge_buffer(size: int) -> memoryview:
    """Returns `size` bytes or more, in huge pages if the system has some. Raises OSError."""
    size = round_up(size)
    memory = mmap.mmap(-1, size + HUGE_PAGE, _OWN)
    with suppress(OSError):  # a kernel without huge pages: small ones serve as well
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -address_of(memoryview(memory)) % HUGE_PAGE
    return memoryview(memory)[start : start + size]


def buffers(count: int, size: int) -> LifoQueue[memoryview]:
    """Returns buffers of `size` bytes or more. The one that was freed last comes first: a cache may still hold it."""
    free = LifoQueue[memoryview]()
    for _ in range(count):
        free.put(huge_buffer(size))
    return free


def copy_all(sources: Sequence[memoryview], target: memoryview) -> None:
    """Copies the sources to the target, one behind the other. Raises ValueError if it has another size than they."""
    ends = [*accumulate(map(len, sources), initial=0)]
    if ends[-1] != len(target):
        raise ValueError(f"{ends[-1]} bytes do not fit into {len(target)}")
    move_each([target[at:end] for at, end in pairwise(ends)], sources)


def clear(target: memoryview) -> None:
    """Fills the target with zeros; other threads run meanwhile."""
    ctypes.memset(address_of(target), 0, len(target))


def move_each(targets: Sequence[memoryview], sources: Sequence[memoryview]) -> None:
    """Copies each source to its target; none overlaps. Raises ValueError if a target has another size.

    Pieces that follow each other on both sides are copied as one, and other threads run meanwhile. Each return to the
    interpreter makes threads wait for each other.
    """
    pending = 0, 0, 0
    for target, source in zip(targets, sources, strict=True):
        if len(target) != len(source):
            raise ValueError(f"{len(source)} bytes do not fit into {len(target)}")
        if source.readonly or not source:
            target[:] = source
            continue
        to, of, size = address_of(target), address_of(source), len(source)
        if (pending[0] + pending[2], pending[1] + pending[2]) == (to, of):
            pending = pending[0], pending[1], pending[2] + size
        else:
            ctypes.memmove(*pending)
            pending = to, of, size
    ctypes.memmove(*pending)


def together(first: memoryview, second: memoryview) -> memoryview | None:
    """Returns both as one where they lie side by side, else None. It keeps neither of them mapped."""
    if first.readonly or second.readonly or not (first and second):
        return None
    begin = address_of(first)
    if begin + len(first) != address_of(second):
        return None
    return memoryview((ctypes.c_ubyte * (len(first) + len(second))).from_address(begin)).cast("B")


def address_of(memory: memoryview) -> int:
    """Returns the address of the first byte of memory that may be written. Raises ValueError for no bytes."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
