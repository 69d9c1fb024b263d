"""Settings of the Python interpreter, of a whole process."""

import sys

SWITCH_S = 0.0005
"""The switch interval of processes in which several threads name or compare chunks, or one asks for them.

A thread that names a chunk needs 60 us, and then the interpreter's lock. With the usual 5 ms, and another thread in the
interpreter, two threads name 0.14 GB/s instead of 8; with this 2.8. An event loop waits as long for the lock.
"""


def switch_often() -> None:
    """Has the threads of this process take turns in the interpreter every SWITCH_S."""
    sys.setswitchinterval(SWITCH_S)
