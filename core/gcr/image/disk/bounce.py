"""Bounce buffers: memory through which images are read from a disk and written to one.

A request past the page cache names the pages of its memory. A memfd's are small and lie anywhere on a machine that has
run for a while, and a request can name only so many: a disk then gets small requests, and is as slow as these. A bounce
buffer is of huge pages where the system has some, and is used again while the processor still has it in its cache, from
and to where virtual disks copy faster. docs/benchmarks-history.md has what each is worth.
"""

import ctypes
import mmap
from collections.abc import Sequence
from contextlib import suppress
from queue import LifoQueue
from threading import local

from gcr.memory.places import HUGE_PAGE, round_up


class Bounce(local):
    """One buffer for each thread, as large as the largest that it asked for."""

    def __init__(self) -> None:
        self._buffer = memoryview(b"")

    def buffer(self, size: int) -> memoryview:
        """`size` bytes from the beginning of a page on; what this thread had there is gone. Raises OSError."""
        if size > len(self._buffer):
            self._buffer = huge_buffer(size)
        return self._buffer[:size]


def huge_buffer(size: int) -> memoryview:
    """`size` bytes or more, of huge pages where the system has some. Raises OSError."""
    size = round_up(size)
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them: small ones serve as well
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -_address(memoryview(memory)) % HUGE_PAGE
    return memoryview(memory)[start : start + size]


def buffers(count: int, size: int) -> LifoQueue[memoryview]:
    """Of `size` bytes or more each. The one that was free last is taken first: a cache may have it still."""
    free = LifoQueue[memoryview]()
    for _ in range(count):
        free.put(huge_buffer(size))
    return free


def move_each(targets: Sequence[memoryview], sources: Sequence[memoryview]) -> None:
    """Bytes from each source to its target; none overlaps. Raises ValueError where a target is not as long.

    What follows one another on both sides goes in one piece, and the interpreter is not held meanwhile: threads get in
    each other's way wherever it is left and entered again.
    """
    pending = 0, 0, 0
    for target, source in zip(targets, sources, strict=True):
        if len(target) != len(source):
            raise ValueError(f"{len(source)} bytes do not fit into {len(target)}")
        if source.readonly or not source:
            target[:] = source
            continue
        to, of, size = _address(target), _address(source), len(source)
        if (pending[0] + pending[2], pending[1] + pending[2]) == (to, of):
            pending = pending[0], pending[1], pending[2] + size
        else:
            ctypes.memmove(*pending)
            pending = to, of, size
    ctypes.memmove(*pending)


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
