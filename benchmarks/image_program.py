"""Holds device memory that cannot be compressed or shared, and changes as much of it as it is told.

`ready`; then a line for a line: `digest`: of every word · `touch SHARE SEED`: another word in that share of the chunks.
`--plain`: through the driver alone, for a rehearsal on a simulated device; else through PyTorch.
"""

import argparse
import hashlib
import os
import random
import sys
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "victims"))

from dialogue import say

CHUNK = 256 << 10
BUFFER = 512 << 20
GIB = 1 << 30


class Memory(Protocol):
    def digest(self) -> str: ...

    def touch(self, share: float, seed: int) -> None:
        """Of each buffer's chunks this share, at least one in all."""


class Torch:
    def __init__(self, total: int) -> None:
        import torch

        self.torch = torch
        self.generator = torch.Generator("cuda").manual_seed(11)
        sizes = [min(BUFFER, total - at) for at in range(0, total, BUFFER)]
        self.buffers = [torch.empty(size // 4, dtype=torch.int32, device="cuda") for size in sizes]
        for buffer in self.buffers:
            buffer.random_(0, (1 << 31) - 1, generator=self.generator)
        torch.cuda.synchronize()

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
        from device import open_device

        self.device, self.size = open_device("nvidia"), total
        self.address = self.device.allocate(total)
        self.device.write(self.address, os.urandom(total))

    def digest(self) -> str:
        return hashlib.sha256(self.device.read(self.address, self.size)).hexdigest()[:16]

    def touch(self, share: float, seed: int) -> None:
        chunks = self.size // CHUNK
        for number in random.Random(seed).sample(range(chunks), max(1, round(share * chunks))):
            self.device.write(self.address + number * CHUNK, seed.to_bytes(4, "little"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    total = int(options.gib * GIB) // CHUNK * CHUNK
    memory: Memory = Plain(total) if options.plain else Torch(total)
    say("ready")
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "touch":
            memory.touch(float(rest[0]), int(rest[1]))
        say(memory.digest())


if __name__ == "__main__":
    main()
