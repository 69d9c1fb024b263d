"""A training by Ray Train that `gcr.torch` saves every few steps. When a worker dies it goes on from the last save.

    ray start --head
    python examples/ray_train.py --store /data/run --workers 2      # again after its end: it goes on from the last save

`--gpu` gives each worker a GPU of Ray's: docs/cluster.md has what was run.

Needs Ray Train and PyTorch: pip install 'gpu-cr[torch,ray]' 'ray[train]'.
"""

import argparse
import hashlib
from typing import Any

import torch
from ray import train
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torch import nn

from gcr.torch import Checkpointer

WIDTH = 256


def batch(step: int, rank: int, device: torch.device) -> torch.Tensor:
    """Returns the same numbers for a step and a rank in every run."""
    return torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(step * 1000 + rank)).to(device)


def train_worker(options: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    rank, device = train.get_context().get_world_rank(), get_device()
    model = prepare_model(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)))
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "optimizer": optimizer}
    with Checkpointer(options["store"], keep_last=2) as keeper:
        done = keeper.load_latest(into=state) or 0
        for step in range(done + 1, options["steps"] + 1):
            numbers = batch(step, rank, device)
            loss = nn.functional.mse_loss(model(numbers), numbers.roll(1, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % options["every"] == 0 or step == options["steps"]:
                keeper.save(step, state)
    parameters = b"".join(each.detach().cpu().numpy().tobytes() for each in model.parameters())
    return {"from": done, "parameters": hashlib.sha256(parameters).hexdigest()[:16]}


def main() -> None:
    parser = argparse.ArgumentParser(description="train a small network by Ray Train, saved by gcr.torch")
    parser.add_argument("--store", required=True, help="a folder that all nodes see, or a bucket")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=50, help="steps from one save to the next")
    parser.add_argument("--gpu", action="store_true", help="a GPU of Ray's for each worker")
    options = parser.parse_args()
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"store": options.store, "steps": options.steps, "every": options.every},
        scaling_config=train.ScalingConfig(num_workers=options.workers, use_gpu=options.gpu),
        run_config=train.RunConfig(failure_config=train.FailureConfig(max_failures=3)),
    )
    print("result", trainer.fit().return_value, flush=True)


if __name__ == "__main__":
    main()
