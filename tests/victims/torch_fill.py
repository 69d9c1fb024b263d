"""Holds GiB of device memory in many buffers and checksums every word of them by a kernel.

Interactive only: prints `ready`, answers each line with the checksums of all buffers and the allocation's size.
Each answer also adds one to every word and takes it away again, so that writing works too.
With --devices each of the first so many holds as much, and each answer has the checksum of one buffer of each device,
as another one reads it by peer access.
"""

import argparse
import os
from collections.abc import Callable
from typing import Any

from dialogue import serve

GIB = 1 << 30
WEIGHTS = 1 << 18
ROWS = 64


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--buffers", type=int, default=0, help="0: one for each 512 MiB")
    parser.add_argument("--pinned-gib", type=float, default=0.0, help="of pinned host memory")
    parser.add_argument("--interactive", action="store_true", help="always so; accepted for uniformity")
    parser.add_argument("--allocator", choices=["default", "expandable", "async"], default="default")
    return parser.parse_args()


class Fill:
    def __init__(self, total: int, buffers: int, pinned: int) -> None:
        import torch

        self.torch = torch
        generator = torch.Generator("cuda").manual_seed(11)
        words = total // buffers // 4
        self.buffers = [self._random(words, generator) for _ in range(buffers)]
        self.weights = torch.arange(1, WEIGHTS + 1, device="cuda", dtype=torch.int32)
        self.pinned = torch.full((pinned,), 3, dtype=torch.uint8, pin_memory=True) if pinned else None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def _random(self, words: int, generator: object) -> object:
        out = self.torch.empty(words, dtype=self.torch.int32, device="cuda")
        return out.random_(0, (1 << 31) - 1, generator=generator)

    def checksum(self, buffer: object) -> int:
        """Returns a sum of every word, weighted by its place within each MiB and by the MiB.

        Computed mod 2^32, so order does not matter.
        """
        whole = buffer.numel() // WEIGHTS * WEIGHTS
        rows = buffer[:whole].view(-1, WEIGHTS)
        total = int(buffer[whole:].sum(dtype=self.torch.int64))
        for start in range(0, rows.shape[0], ROWS):  # in slices, so that little room is needed
            part = (rows[start : start + ROWS] * self.weights).sum(dim=1, dtype=self.torch.int64)
            total = (total * 1000003 + int((part * self.weights[: part.numel()]).sum())) % (1 << 61)
        return total

    def answer(self) -> str:
        for buffer in self.buffers:
            buffer.add_(1)
            buffer.sub_(1)
        sums = [self.checksum(buffer) for buffer in self.buffers]
        total = 0
        for each in sums:
            total = (total * 1000003 + each) % (1 << 61)
        pinned = "" if self.pinned is None else f" pinned {bool((self.pinned[::4096] == 3).all())}"
        return f"bytes {sum(buffer.numel() * 4 for buffer in self.buffers)} checksum {total:016x}{pinned}"


class Fills:
    """One for each device."""

    def __init__(self, devices: int, sizes: tuple[int, int, int]) -> None:
        import torch

        self.torch = torch
        self.fills = [self._on(number, lambda: Fill(*sizes)) for number in range(devices)]
        self.across()  # peer access is there from the start

    def _on(self, number: int, act: Callable[[], Any]) -> Any:
        with self.torch.cuda.device(number):
            return act()

    def across(self) -> str:
        """Each device sums up the first buffer of the next one."""
        sums = []
        for number, mine in enumerate(self.fills):
            theirs = self.fills[(number + 1) % len(self.fills)].buffers[0]
            sums.append(self._on(number, lambda: mine.checksum(theirs.to(f"cuda:{number}"))))  # noqa: B023
        return " ".join(f"{each:016x}" for each in sums)

    def answer(self) -> str:
        own = [self._on(number, fill.answer) for number, fill in enumerate(self.fills)]
        return " ".join([*own, "across", self.across()])


def main() -> None:
    options = arguments()
    settings = {"expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}
    if options.allocator in settings:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = settings[options.allocator]
    buffers = options.buffers or max(1, round(options.gib * 2))
    sizes = int(options.gib * GIB), buffers, int(options.pinned_gib * GIB)
    serve(Fill(*sizes).answer if options.devices == 1 else Fills(options.devices, sizes).answer)


if __name__ == "__main__":
    main()
