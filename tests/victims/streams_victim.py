"""PyTorch: threads, each with streams of its own that wait for each other by events; their memory comes and goes.

Every step each thread multiplies in its first stream, goes on in its second with what that made, and leaves a sum.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dialogue import parser, perform

THREADS, ROUNDS, WIDTH = 4, 12, 768


class Lane:
    """The objects of one thread: two streams, a state and weights."""

    def __init__(self, torch: Any, number: int) -> None:
        self.torch = torch
        generator = torch.Generator("cuda").manual_seed(number)
        self.state = torch.randn(WIDTH, WIDTH, device="cuda", generator=generator)
        self.weight = torch.randn(WIDTH, WIDTH, device="cuda", generator=generator) / WIDTH**0.5
        torch.cuda.synchronize()
        self.first, self.second = torch.cuda.Stream(), torch.cuda.Stream()

    def work(self) -> str:
        for turn in range(ROUNDS):
            with self.torch.cuda.stream(self.first):
                product = self.state @ self.weight[:, : WIDTH - 32 * (turn % 3)]
                made = self.first.record_event()
            with self.torch.cuda.stream(self.second):
                self.second.wait_event(made)
                product.record_stream(self.second)
                self.state[:, : product.shape[1]] = self.torch.sin(product)
                self.first.wait_event(self.second.record_event())
        with self.torch.cuda.stream(self.second):
            return float(self.state.double().sum()).hex()


class Threads:
    def __init__(self) -> None:
        import torch

        torch.use_deterministic_algorithms(True)
        self.lanes = [Lane(torch, number) for number in range(THREADS)]
        self.pool = ThreadPoolExecutor(THREADS)

    def step(self) -> str:
        return " ".join(self.pool.map(Lane.work, self.lanes))

    def digest(self) -> str:
        state = hashlib.sha256()
        for lane in self.lanes:
            lane.torch.cuda.synchronize()
            state.update(lane.state.cpu().numpy().tobytes())
        return state.hexdigest()


def main() -> None:
    options = parser(__doc__).parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    perform(options, Threads())


if __name__ == "__main__":
    main()
