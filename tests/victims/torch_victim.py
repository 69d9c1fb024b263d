"""Trains a small transformer with AdamW. Prints every loss as a hex float and a digest of all parameters at the end.

--allocator chooses how PyTorch gets memory: `default` (cuMemAlloc), `expandable` (its own VMM calls), `async`
(cudaMallocAsync's pools), `none` (no caching: an allocation each time).
"""

import argparse
import hashlib
import os
import time

from dialogue import note, say, serve

ALLOCATORS = {
    "default": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "none": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--allocator", choices=sorted(ALLOCATORS), default="default")
    parser.add_argument("--interactive", action="store_true")
    return parser.parse_args()


class Training:
    """Data, model and optimizer, all from one seed."""

    def __init__(self, width: int, layers: int) -> None:
        import torch

        torch.manual_seed(7)
        torch.use_deterministic_algorithms(True)
        layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
        body = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.model = torch.nn.Sequential(torch.nn.Embedding(1000, width), body, torch.nn.Linear(width, 1000)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data = torch.randint(0, 1000, (64, 33), device="cuda")
        self.torch = torch

    def step(self) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(self.data[:, :-1])
        loss = self.torch.nn.functional.cross_entropy(logits.reshape(-1, 1000), self.data[:, 1:].reshape(-1))
        loss.backward()
        self.optimizer.step()
        return float(loss)

    def digest(self) -> str:
        state = hashlib.sha256()
        for parameter in self.model.parameters():
            state.update(parameter.detach().cpu().numpy().tobytes())
        return state.hexdigest()


def main() -> None:
    options = arguments()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.update(ALLOCATORS[options.allocator])
    training = Training(options.width, options.layers)
    if options.interactive:
        training.step()
        serve(lambda: f"{training.step().hex()} {training.digest()}")
        return
    for number in range(options.steps):
        say(f"step {number} loss {training.step().hex()}")
        time.sleep(options.pause)
    note("trained")
    say(f"digest {training.digest()}")


if __name__ == "__main__":
    main()
