"""Buffers that are stamped over and over, so that a copy of them says when each was copied, and whether at once.

Each thread has a stream and some buffers. In round after round it stamps them in order, each whole with the number of
the round; every third with one of two values in turn, A and B; and every third with one that is the same for many
rounds, so that an image has it as the one before. Beside them it allocates and frees. So a stop
between two operations finds each buffer of one stamp, and no buffer more than a round behind the one before it.

Answers each line with the rounds that each thread has finished, and begun.
`--buffers` of `--bytes` each, in `--threads`. The first line after `ready` is asked for says where they are.
"""

import argparse
import json
import random
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from device import VENDORS, Device, open_device
from dialogue import say

A, B = 0xAAAA0001, 0xBBBB0001
SAME, SLOWLY = 0xCC000000, 500
CHURN = 3  # allocations beside
PAUSE = 0.003  # seconds after each buffer: a stop finds most rounds half done, and the machine has others to serve
LARGEST = 4 << 20


def stamp(number: int, epoch: int) -> int:
    """Returns the 32 bits that buffer `number` holds after round `epoch`, which counts from 1."""
    if number % 3 == 1:
        return SAME | epoch // SLOWLY
    return (A, B)[epoch % 2] if number % 3 == 2 else epoch


@dataclass
class Stamper:
    device: Device
    count: int
    size: int
    random: random.Random
    buffers: list[int] = field(default_factory=list)
    finished: int = 0
    begun: int = 0
    beside: list[int] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)
    over: bool = False

    def run(self) -> None:
        self.device.enter()
        stream = self.device.stream()
        self.buffers = [self.device.allocate(self.size) for _ in range(self.count)]
        while not self.over:
            self.begun += 1
            self._round(stream)
            self.finished = self.begun
            self.ready.set()

    def _round(self, stream: Any) -> None:
        for number, address in enumerate(self.buffers):
            self.device.fill(address, self.size // 8, stamp(number, self.begun), stream)
            time.sleep(PAUSE)
        if self.random.random() < 0.3:
            self._churn(stream)
        self.device.wait(stream)

    def _churn(self, stream: Any) -> None:
        if len(self.beside) >= CHURN:
            self.device.wait(stream)
            self.device.free(self.beside.pop(self.random.randrange(CHURN)))
        size = self.random.randrange(4096, LARGEST) // 8 * 8
        self.beside.append(self.device.allocate(size))
        self.device.fill(self.beside[-1], size // 8, self.begun, stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vendor", choices=VENDORS, default="nvidia")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--buffers", type=int, default=6)
    parser.add_argument("--bytes", type=int, default=3 << 20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = open_device(options.vendor)
    chance = [random.Random(f"{options.seed} {number}") for number in range(options.threads)]
    stampers = [Stamper(device, options.buffers, options.bytes, each) for each in chance]
    threads = [threading.Thread(target=each.run, daemon=True) for each in stampers]
    for thread in threads:
        thread.start()
    for each in stampers:
        each.ready.wait()
    say("ready")
    for line in sys.stdin:
        if line.strip() == "where":
            say(json.dumps([each.buffers for each in stampers]))
        else:
            say(json.dumps([[each.finished, each.begun] for each in stampers]))
    for each in stampers:
        each.over = True
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
