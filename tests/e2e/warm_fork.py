"""A fork whose child belongs to the caller's parent, and what a new process would have of its own.

The kernel shows a child's command line and environment as its own, so that tests and gcr find it in /proc as usual.
"""

import ctypes
import mmap
import os
import platform
import signal
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

# Numbers of system calls: clone, set_robust_list, get_robust_list.
_CALLS = {"x86_64": (56, 273, 274), "aarch64": (220, 99, 100)}
_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x00200000, 0x01000000
_PR_SET_MM, _PR_SET_MM_MAP, _PR_SET_MM_MAP_SIZE, _PR_GET_TID_ADDRESS = 35, 14, 15, 40
_M_PERTURB = -6
_MAP = "=12QIi"  # struct prctl_mm_map
# Fields of /proc/self/stat, by proc(5): code, data, the start of the heap, the stack.
_CODE, _END_OF_CODE, _STACK, _DATA, _END_OF_DATA, _HEAP = 26, 27, 28, 45, 46, 47

_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.sbrk.restype = ctypes.c_void_p
_shown: list[mmap.mmap] = []  # the kernel reads them for as long as the process lives


@cache
def possible() -> bool:
    """Returns whether this machine's kernel and processor are known to do it."""
    size = ctypes.c_uint()
    known = platform.machine() in _CALLS and _libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP_SIZE, ctypes.byref(size), 0, 0) == 0
    return known and size.value == struct.calcsize(_MAP) and bool(_address_of_tid())


def fork() -> int:
    """Forks as os.fork does."""
    _check_single()
    return os.fork()


def fork_sibling() -> int:
    """Forks a child of this process's own parent. Returns its pid, and 0 in the child."""
    _check_single()
    clone, set_robust_list, get_robust_list = _CALLS[platform.machine()]
    tid, robust, size = ctypes.c_void_p(_address_of_tid()), ctypes.c_void_p(), ctypes.c_size_t()
    _libc.syscall(ctypes.c_long(get_robust_list), 0, ctypes.byref(robust), ctypes.byref(size))
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    nothing = ctypes.c_ulong(0)
    _libc.PyOS_BeforeFork()
    # The two last are the same: their order differs between processors, and the one that is not the tid is not read.
    pid = int(_libc.syscall(ctypes.c_long(clone), ctypes.c_ulong(flags), nothing, nothing, tid, tid))
    if pid:
        _libc.PyOS_AfterFork_Parent()
    else:  # as libc's own fork does: the kernel forgets the list of a child
        _libc.syscall(ctypes.c_long(set_robust_list), robust, size)
        _libc.PyOS_AfterFork_Child()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return pid


def _check_single() -> None:
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread would be missing in the new process"


def _address_of_tid() -> int:
    """Returns where libc keeps the number of this thread. 0: the kernel does not say."""
    found = ctypes.c_void_p()
    _libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(found), 0, 0, 0)
    return found.value or 0


def show(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Has /proc show this command line and environment of this process."""
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    settings = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    memory = mmap.mmap(-1, len(words) + len(settings) + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(words + settings)
    _shown.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    middle, end = start + len(words), start + len(words) + len(settings)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    code, end_of_code, stack, data, end_of_data, heap = (
        int(fields[number - 3]) for number in (_CODE, _END_OF_CODE, _STACK, _DATA, _END_OF_DATA, _HEAP)
    )
    places = (code, end_of_code, data, end_of_data, heap, _libc.sbrk(0), stack, start, middle, middle, end)
    packed = struct.pack(_MAP, *places, 0, 0, -1)
    if _libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, packed, ctypes.c_ulong(len(packed)), 0):
        raise OSError(ctypes.get_errno(), "PR_SET_MM_MAP")


def overwrite_freed(value: str) -> None:
    """Has malloc overwrite what is freed, as it does at the start of a program for MALLOC_PERTURB_."""
    _libc.mallopt(_M_PERTURB, int(value or "0"))
