"""Trains without a pause on a state of a given size, and says how long it stood still.

`ready`; then a line for a line, each dealt with between two steps: `watch`: from here on · `gaps`: seconds between the
ends of two steps since then, the longest and the median · `save FILE`: by torch.save · `async FOLDER`: by DCP's
async_save, answered when that is done, while steps go on. `--plain`: through the driver alone, for a rehearsal on a
simulated device; `--device cpu`: for one of the half that needs PyTorch.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from threading import Thread
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "victims"))

from dialogue import say

GIB = 1 << 30
TENSOR = 256 << 20
WIDTH = 8192  # of the product that stands for a step's other work: some 20 ms of an H200


class Training(Protocol):
    state: dict[str, Any]

    def step(self) -> None:
        """Done when it returns: nothing of it is queued."""


class Torch:
    def __init__(self, total: int, trained: float, device: str) -> None:
        import torch

        self.torch = torch
        width = WIDTH if device == "cuda" else 256
        self.activations = torch.randn(width, width, device=device)
        sizes = [min(TENSOR, total - at) for at in range(0, total, TENSOR)]
        self.state = {f"layer{n}": torch.randn(size // 4, device=device) for n, size in enumerate(sizes)}
        self.trained = [tensor[: round(trained * tensor.numel())] for tensor in self.state.values()]

    def step(self) -> None:
        loss = (self.activations @ self.activations).mean()
        self.torch._foreach_mul_(self.trained, 0.999999)
        float(loss + sum(part[-1:].sum() for part in self.trained))


class Plain:
    def __init__(self, total: int, trained: float) -> None:
        from device import open_device

        self.device, self.state = open_device("nvidia"), {}
        self.address, self.words = self.device.allocate(total), round(trained * total)
        self.device.write(self.address, os.urandom(total))

    def step(self) -> None:
        self.device.write(self.address, os.urandom(self.words))
        time.sleep(0.001)


class Loop:
    """Steps until it is told to end."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.gaps: list[float] = []
        self.last = time.perf_counter()

    def step(self) -> None:
        self.training.step()
        now = time.perf_counter()
        self.gaps.append(now - self.last)
        self.last = now

    def answer(self, line: str) -> dict[str, Any]:
        word, *rest = line.split()
        match word:
            case "watch":
                self.watch()
                return {}
            case "gaps":
                return self.found()
            case "save":
                return self.save(rest[0])
            case "async":
                return self.save_beside(rest[0])
        raise SystemExit(f"no such word: {line}")

    def watch(self) -> None:
        self.gaps, self.last = [], time.perf_counter()

    def found(self) -> dict[str, Any]:
        return {
            "steps": len(self.gaps),
            "watched_s": sum(self.gaps),
            "longest_s": max(self.gaps),
            "typical_s": median(self.gaps),
        }

    def save(self, file: str) -> dict[str, Any]:
        import torch

        with took() as call:
            torch.save(self.training.state, file)
        self.last = time.perf_counter()
        return call

    def save_beside(self, folder: str) -> dict[str, Any]:
        import torch.distributed.checkpoint as dcp

        with took() as call:
            saving = dcp.async_save(self.training.state, checkpoint_id=folder)
        self.watch()
        began = time.perf_counter()
        while not saving.done() or not self.gaps:
            self.step()
        saving.result()
        return {**call, "done_s": time.perf_counter() - began, **self.found()}


@contextmanager
def took() -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = {}
    began = time.perf_counter()
    yield found
    found["call_s"] = time.perf_counter() - began


def _read(asked: SimpleQueue[str | None]) -> None:
    for line in sys.stdin:
        asked.put(line)
    asked.put(None)


def serve(loop: Loop, answer: Callable[[str], dict[str, Any]]) -> None:
    """Steps, and answers a line between two steps, until standard input ends."""
    asked: SimpleQueue[str | None] = SimpleQueue()
    Thread(target=_read, args=(asked,), daemon=True).start()
    loop.step()
    loop.watch()
    say("ready")
    while True:
        loop.step()
        try:
            line = asked.get_nowait()
        except Empty:
            continue
        if line is None:
            return
        say(json.dumps(answer(line)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--trained", type=float, default=1.0, help="share of the state that each step changes")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    total = int(options.gib * GIB) // TENSOR * TENSOR or int(options.gib * GIB)
    plain = options.plain
    loop = Loop(Plain(total, options.trained) if plain else Torch(total, options.trained, options.device))
    serve(loop, loop.answer)


if __name__ == "__main__":
    main()
