"""Captures a CUDA graph once and replays it: a checkpoint must not make its addresses or its nodes stale."""

import argparse
import hashlib
import time

from dialogue import say, serve


class Graph:
    def __init__(self) -> None:
        import torch

        torch.manual_seed(5)
        self.torch = torch
        self.state = torch.rand(2048, 2048, device="cuda")
        self.weight = torch.rand(2048, 2048, device="cuda") / 1024
        self._warm_up()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._compute()

    def _warm_up(self) -> None:
        side = self.torch.cuda.Stream()
        with self.torch.cuda.stream(side):
            for _ in range(3):
                self._compute()
        self.torch.cuda.current_stream().wait_stream(side)

    def _compute(self) -> None:
        self.state.copy_(self.torch.sin(self.state @ self.weight + self.state))

    def replay(self, times: int) -> str:
        for _ in range(times):
            self.graph.replay()
        return hashlib.sha256(self.state.cpu().numpy().tobytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--interactive", action="store_true")
    options = parser.parse_args()
    graph = Graph()
    if options.interactive:
        serve(lambda: graph.replay(3))
        return
    for number in range(options.steps):
        say(f"step {number} {graph.replay(3)}")
        time.sleep(options.pause)


if __name__ == "__main__":
    main()
