"""A slow disk: Python loads this module first if PYTHONPATH has this folder. Writes take a second for 8 MB."""

import os
import time
from collections.abc import Sequence
from threading import Lock
from typing import Any

BYTES_PER_S = 8e6
disk, real = Lock(), os.pwritev


def pwritev(fd: int, buffers: Sequence[Any], *rest: Any) -> int:
    with disk:
        time.sleep(sum(map(len, buffers)) / BYTES_PER_S)
        return real(fd, buffers, *rest)


os.pwritev = pwritev
