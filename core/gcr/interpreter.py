"""Settings of the Python interpreter, of a whole process."""

import sys

SWITCH_S = 0.0005
"""The switch interval of processes in which several threads name chunks, or compare them.

A thread that names a chunk needs 60 us, and then the interpreter's lock. With the usual 5 ms, and another thread in the
interpreter, two threads name 0.14 GB/s instead of 8; with this 2.8. A pull from nodes gains nothing by it: 17.2 GB took
8.3 s so, and 7.9 s with the usual one (16 cores, run 48).
"""


def switch_often() -> None:
    """Has the threads of this process take turns in the interpreter every SWITCH_S."""
    sys.setswitchinterval(SWITCH_S)
