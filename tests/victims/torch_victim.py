"""Trains a small transformer with AdamW. Prints every loss as a hex float and a digest of all parameters at the end.

--allocator chooses how PyTorch gets memory: `default` (cuMemAlloc), `expandable` (its own VMM calls), `async`
(cudaMallocAsync's pools), `none` (no caching: an allocation each time). --precision: `bf16` and `fp16` by autocast,
`fp16` with a GradScaler. --workers: processes that load the data, by pinned memory; without them it is on the device.
"""

import hashlib
import os
from collections.abc import Iterator
from typing import Any

from dialogue import parser, perform

ALLOCATORS = {
    "default": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "none": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}
WORDS, LENGTH, BATCH = 1000, 33, 64
SAMPLES = 20 * BATCH


class Training:
    """Data, model and optimizer, all from one seed."""

    def __init__(
        self, width: int, layers: int, precision: str = "fp32", workers: int = 0, device: Any = "cuda"
    ) -> None:
        import torch

        torch.manual_seed(7)
        torch.use_deterministic_algorithms(True)
        layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
        body = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        head = torch.nn.Linear(width, WORDS)
        self.model = torch.nn.Sequential(torch.nn.Embedding(WORDS, width), body, head).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        self.scaler = torch.amp.GradScaler(torch.device(device).type, enabled=precision == "fp16")
        self.data = loaded(torch, workers) if workers else resident(torch, device)
        self.torch, self.kind = torch, torch.device(device).type

    def step(self) -> str:
        data = next(self.data)
        self.optimizer.zero_grad(set_to_none=True)
        with self.torch.autocast(self.kind, self.half, enabled=self.half is not None):
            logits = self.model(data[:, :-1])
            loss = self.torch.nn.functional.cross_entropy(logits.reshape(-1, WORDS), data[:, 1:].reshape(-1))
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return f"loss {loss.item().hex()}"

    def digest(self) -> str:
        state = hashlib.sha256()
        for parameter in self.model.parameters():
            state.update(parameter.detach().cpu().numpy().tobytes())
        return state.hexdigest()


def resident(torch: Any, device: Any) -> Iterator[Any]:
    """One batch, on the device once and for all."""
    data = torch.randint(0, WORDS, (BATCH, LENGTH), device=device)
    while True:
        yield data


def loaded(torch: Any, workers: int) -> Iterator[Any]:
    """Batches of a data set that is shuffled anew each time round, made by other processes."""
    samples = torch.utils.data.TensorDataset(torch.randint(0, WORDS, (SAMPLES, LENGTH)))
    loader = torch.utils.data.DataLoader(
        samples, BATCH, shuffle=True, num_workers=workers, pin_memory=True, persistent_workers=True
    )
    while True:
        for (data,) in loader:
            yield data.cuda(non_blocking=True)


def main() -> None:
    arguments = parser(__doc__, steps=30)
    arguments.add_argument("--width", type=int, default=256)
    arguments.add_argument("--layers", type=int, default=3)
    arguments.add_argument("--allocator", choices=sorted(ALLOCATORS), default="default")
    arguments.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    arguments.add_argument("--workers", type=int, default=0)
    options = arguments.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.update(ALLOCATORS[options.allocator])
    perform(options, Training(options.width, options.layers, options.precision, options.workers))


if __name__ == "__main__":
    main()
