"""Keeps things for `holding.py`: its arguments, calls of C functions, descriptors that live as long as the process."""

import ctypes
import mmap
import os
import sys

NEW_IPC, NEW_NETWORK = 0x08000000, 0x40000000
report = os.dup(1)
os.dup2(os.open("/dev/null", os.O_RDWR), 1)
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = libc.mmap.restype = ctypes.c_void_p
kept = []  # what lives as long as the process
folder, given = sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""


def call(function, *arguments):
    """Returns the answer of a C function. Raises OSError for -1."""
    found = function(*arguments)
    if found in (-1, 2**64 - 1):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def keep(thing):
    kept.append(thing)
    return thing.fileno() if hasattr(thing, "fileno") else thing


def held(path, flags=os.O_RDWR):
    return keep(os.open(path, flags | os.O_NOCTTY))


def mapped(fd, protection=mmap.PROT_READ, flags=mmap.MAP_SHARED):
    """Maps a page and closes the descriptor."""
    call(libc.mmap, None, 4096, protection, flags, fd, ctypes.c_long(0))
    os.close(fd)
    return -1
