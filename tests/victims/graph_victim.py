"""Inference by CUDA graphs: a checkpoint must not make their addresses or their nodes stale.

Each step feeds the model's answer back to it, so that nothing is forgotten. Captured by hand; with --compile by
torch.compile(mode="reduce-overhead"): its kernels are Triton's and its graphs have pools of their own.
"""

import hashlib
import os

from dialogue import parser, perform

WIDTH, ROWS, LAYERS, REPLAYS = 2048, 1024, 4, 10


class Inference:
    """`answer` is the model's, of what `state` holds."""

    def __init__(self, compiled: bool) -> None:
        import torch

        torch.manual_seed(5)
        torch.use_deterministic_algorithms(True)
        self.torch = torch
        with torch.device("cuda"):
            blocks = [self._block() for _ in range(LAYERS)]
            self.model = torch.nn.Sequential(*blocks, torch.nn.LayerNorm(WIDTH)).eval()
            self.state = torch.randn(ROWS, WIDTH)
        self.replay = self._compile() if compiled else self._capture()

    def _block(self) -> object:
        nn = self.torch.nn
        return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def _compile(self) -> object:
        """Each process compiles anew: one that found everything in a cache would hold less device memory."""
        from torch._inductor import config

        config.force_disable_caches = True
        model = self.torch.compile(self.model, mode="reduce-overhead", fullgraph=True)
        return lambda: self.state.copy_(model(self.state))

    def _capture(self) -> object:
        side = self.torch.cuda.Stream()
        with self.torch.cuda.stream(side), self.torch.no_grad():
            for _ in range(3):
                self.model(self.state)
        self.torch.cuda.current_stream().wait_stream(side)
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph), self.torch.no_grad():
            self.state.copy_(self.model(self.state))
        return graph.replay

    def step(self) -> str:
        with self.torch.no_grad():
            for _ in range(REPLAYS):
                self.replay()
        return float(self.state[:, : WIDTH // 3].double().sum()).hex()

    def digest(self) -> str:
        return hashlib.sha256(self.state.cpu().numpy().tobytes()).hexdigest()


def check_that_graphs_were_made() -> None:
    """torch.compile says quietly why it makes none; then this would be another program."""
    from torch._dynamo.utils import counters

    if skipped := counters["inductor"]["cudagraph_skips"]:
        raise SystemExit(f"victim: torch.compile made no CUDA graph {skipped} times")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--compile", action="store_true")
    options = arguments.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    perform(options, Inference(options.compile))
    if options.compile:
        check_that_graphs_were_made()


if __name__ == "__main__":
    main()
