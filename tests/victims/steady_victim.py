"""A program of several ranks, each a process that runs by itself: step after step it writes its words and reads them.

`ready`, once each rank has made a step. Then a line for each line: the step of each rank, or `wrong RANK` where a rank
has read other words than it wrote. All end with the first process.
"""

import mmap
import os
import struct
import sys
import threading
import time

from dialogue import say

WORDS = 4096
REST = 0.002  # seconds after each step: the machine has others to serve
WRONG = 1 << 62


def rank(number: int, told: mmap.mmap, parent: int) -> None:
    from cuda_device import CudaDevice

    device = CudaDevice()
    address, step = device.allocate(8 * WORDS), 0
    while os.getppid() == parent:
        step += 1
        words = struct.pack("<Q", number << 32 | step) * WORDS
        device.write(address, words)
        time.sleep(REST)
        right = device.read(address, 8 * WORDS) == words
        struct.pack_into("<Q", told, 8 * number, step if right else WRONG)
        if not right:
            threading.Event().wait()


def steps(told: mmap.mmap, ranks: int) -> list[int]:
    return list(struct.unpack_from(f"<{ranks}Q", told))


def main() -> None:
    ranks, told, parent = int(sys.argv[1]), mmap.mmap(-1, mmap.PAGESIZE), os.getpid()
    for number in range(ranks):
        if os.fork() == 0:
            sys.stdin.close()
            rank(number, told, parent)
            os._exit(0)
    while not all(steps(told, ranks)):
        time.sleep(REST)
    say("ready")
    for _ in sys.stdin:
        now = steps(told, ranks)
        say(f"wrong {now.index(WRONG)}" if WRONG in now else " ".join(map(str, now)))


main()
