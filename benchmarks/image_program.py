"""Holds device memory that cannot be compressed or shared, and changes as much of it as it is told.

`ready`; then a line for a line: `digest`: of every word · `touch SHARE SEED`: another word in that share of the chunks;
`grow COUNT PAUSE`: from here on up to so many allocations more, with so many seconds before each · `grown FROM TO`: how
many of them were made between two times of the monotonic clock · `shrink`: no more of them, and all are freed ·
`more GIB`: so much in addition, which counts like the rest.
`--plain`: through the driver alone, for a rehearsal on a simulated device; else through PyTorch.
"""

import argparse
import hashlib
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "victims"))

from device import open_device
from dialogue import say

CHUNK = 256 << 10
BUFFER = 512 << 20
GIB = 1 << 30
SMALL = 2 << 20


class Memory(Protocol):
    def digest(self) -> str: ...

    def touch(self, share: float, seed: int) -> None:
        """Of each buffer's chunks this share, at least one in all."""

    def more(self, size: int) -> None:
        """Allocates and fills `size` bytes in addition."""


class Torch:
    def __init__(self, total: int) -> None:
        import torch

        self.torch = torch
        self.generator = torch.Generator("cuda").manual_seed(11)
        self.buffers = []
        self.more(total)

    def more(self, size: int) -> None:
        sizes = [min(BUFFER, size - at) for at in range(0, size, BUFFER)]
        made = [self.torch.empty(size // 4, dtype=self.torch.int32, device="cuda") for size in sizes]
        for buffer in made:
            buffer.random_(0, (1 << 31) - 1, generator=self.generator)
        self.torch.cuda.synchronize()
        self.buffers += made

    def digest(self) -> str:
        total = 0
        for buffer in self.buffers:
            for part in buffer.split(64 << 20):
                total = (total * 1000003 + int(part.sum(dtype=self.torch.int64))) % (1 << 61)
        return f"{total:016x}"

    def touch(self, share: float, seed: int) -> None:
        self.generator.manual_seed(seed)
        for buffer in self.buffers:
            chunks = buffer.numel() * 4 // CHUNK
            order = self.torch.randperm(chunks, device="cuda", generator=self.generator)
            buffer[order[: max(1, round(share * chunks))] * (CHUNK // 4)] += seed
        self.torch.cuda.synchronize()


class Plain:
    def __init__(self, total: int) -> None:
        self.device, self.size = open_device("nvidia"), total
        self.buffers: list[tuple[int, int]] = []
        self.more(total)
        self.address = self.buffers[0][0]

    def more(self, size: int) -> None:
        address = self.device.allocate(size)
        self.device.write(address, os.urandom(size))
        self.buffers.append((address, size))

    def digest(self) -> str:
        found = hashlib.sha256()
        for address, size in self.buffers:
            found.update(self.device.read(address, size))
        return found.hexdigest()[:16]

    def touch(self, share: float, seed: int) -> None:
        chunks = self.size // CHUNK
        for number in random.Random(seed).sample(range(chunks), max(1, round(share * chunks))):
            self.device.write(self.address + number * CHUNK, seed.to_bytes(4, "little"))


class Growth:
    """Small allocations on a thread of their own."""

    def __init__(self, count: int, pause: float) -> None:
        self.device = open_device("nvidia")
        self.made: list[tuple[float, int]] = []  # when, and the address
        self.enough = threading.Event()
        self.thread = threading.Thread(target=self._grow, args=(count, pause))
        self.thread.start()

    def _grow(self, count: int, pause: float) -> None:
        self.device.enter()
        stream = self.device.stream()
        while len(self.made) < count and not self.enough.wait(pause):
            address = self.device.allocate(SMALL)
            self.device.fill(address, SMALL // 8, len(self.made) + 1, stream)
            self.made.append((time.monotonic(), address))
        self.device.wait(stream)

    def between(self, begin: float, end: float) -> int:
        return sum(begin <= when <= end for when, _ in self.made)

    def shrink(self) -> None:
        self.enough.set()
        self.thread.join()
        for _, address in self.made:
            self.device.free(address)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    total = int(options.gib * GIB) // CHUNK * CHUNK
    memory: Memory = Plain(total) if options.plain else Torch(total)
    say("ready")
    growth: Growth | None = None
    for line in sys.stdin:
        match line.split():
            case ["grow", count, pause]:
                growth = Growth(int(count), float(pause))
                say("ok")
            case ["grown", begin, end]:
                say(str(growth.between(float(begin), float(end)) if growth else 0))
            case ["shrink"] if growth:
                growth.shrink()
                say(str(len(growth.made)))
            case ["more", gib]:
                memory.more(int(float(gib) * GIB) // CHUNK * CHUNK)
                say(memory.digest())
            case ["touch", share, seed]:
                memory.touch(float(share), int(seed))
                say(memory.digest())
            case _:
                say(memory.digest())


if __name__ == "__main__":
    main()
