"""The memory of other processes: how much it is, and whether /proc/PID/mem has all of it."""

import ctypes
import mmap
import os
from functools import cache
from pathlib import Path

_NOTHING = 0  # a protection: PROT_NONE
_mprotect = ctypes.CDLL(None).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@cache
def overrules_protection() -> bool:
    """Tells whether the file reads and writes what a process has protected from itself, as a tracer may.

    The kernel's parameter proc_mem.force_override (Linux 6.12) may forbid that, and then for our own memory, too.
    """
    hidden = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(hidden))
    if _mprotect(address, mmap.PAGESIZE, _NOTHING):
        return False
    try:
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            return len(os.pread(memory.fileno(), mmap.PAGESIZE, address)) == mmap.PAGESIZE
    except OSError:
        return False


def resident(pid: int) -> int:
    """Returns the bytes that a process has in memory; 0 for one that is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError):
        return 0
