"""Room for descriptors, made at a process's start.

Linux keeps a process's descriptors in a table and doubles it when it is full. In a process with threads each doubling
waits for every processor (synchronize_rcu): 10 to 30 ms, in the middle of a stop if the descriptors of a program's
memory come then. A table that was made large once stays so.
"""

import fcntl
import os
import resource
from contextlib import suppress

ROOM = 1 << 14
"""Descriptors that a process of gcr holds easily: 128 KiB of kernel memory."""
ROOM_FOR_HANDLES = 1 << 16
"""The same for a worker, which keeps a descriptor for each handle of every program on its device."""


def raise_limit(room: int = ROOM) -> None:
    """Raises the limit of descriptors to what the system allows, and makes a table for `room` of them.

    Where less is allowed, the table is for as many. Call it before the first thread starts: it costs microseconds then.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with suppress(OSError):  # no room for one more descriptor, or for the table
        _grow(min(room, hard) - 1)


def make_room(room: int = ROOM) -> None:
    """Makes a table for `room` descriptors. The limit stays as it is, for children inherit it.

    Call it before the first thread starts, as `raise_limit`, which is then fast at any time.
    """
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_limit(room)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _grow(last: int) -> None:
    """Has the kernel make a table in which `last` is a number."""
    any_file = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        os.close(fcntl.fcntl(any_file, fcntl.F_DUPFD_CLOEXEC, last))
    finally:
        os.close(any_file)
