"""A PyTorch training job that knows nothing of gcr. It prints the loss of each step, then a digest of its weights.

gcr run -d --name train -- python examples/train.py
gcr logs train -f
"""

import argparse
import hashlib

import torch
from torch import nn


def digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for weights in model.state_dict().values():
        found.update(weights.cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description="train a perceptron with AdamW")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=4096, help="2 GiB of device memory with 4096")
    parser.add_argument("--depth", type=int, default=8)
    options = parser.parse_args()

    torch.manual_seed(0)
    layers = [part for _ in range(options.depth) for part in (nn.Linear(options.width, options.width), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(options.width, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(options.steps):
        batch = torch.randn(64, options.width, device="cuda")
        loss = (model(batch) - batch.mean(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}", flush=True)
    print(f"digest {digest(model)}", flush=True)


if __name__ == "__main__":
    main()
