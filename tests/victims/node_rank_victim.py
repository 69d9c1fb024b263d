"""One rank of a job of PyTorch that is spread over nodes: NCCL joins the ranks through sockets.

--meeting: a file that all nodes have. All ranks take the same number of steps: a line on standard input says it.
--device cpu: by gloo, to try this program without a GPU.
"""

import os
from typing import Any

from dialogue import parser, perform
from distributed_victim import KINDS, NO_MULTICAST
from torch_ranks import BACKENDS, GIB


class Rank:
    """The rank's part, and memory that it holds besides."""

    def __init__(self, options: Any) -> None:
        import torch

        self.group = torch.distributed
        device = torch.device(options.device, device_of(options)) if options.device == "cuda" else torch.device("cpu")
        more = {}
        if options.device == "cuda":
            torch.cuda.set_device(device)  # streams and graphs that name no device are made there
            more["device_id"] = device
        self.group.init_process_group(
            BACKENDS[options.device],
            init_method=f"file://{options.meeting}",
            rank=options.rank,
            world_size=options.ranks,
            **more,
        )
        self.held = torch.full((int(options.gib * GIB) // 8,), 257 + options.rank, dtype=torch.int64, device=device)
        self.part = KINDS[options.kind](options.rank, options.ranks, device)

    def step(self) -> str:
        return str(self.part.step())

    def digest(self) -> str:
        return f"{self.part.digest()} held {int(self.held.sum())}"


def device_of(options: Any) -> int:
    """Returns the number of this rank's device: its own where there is one for each rank."""
    import torch

    return int(options.rank) if torch.cuda.device_count() >= options.ranks else 0


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--rank", type=int, required=True)
    made.add_argument("--ranks", type=int, default=2)
    made.add_argument("--meeting", required=True)
    made.add_argument("--kind", choices=["ddp", "tensor"], default="ddp")
    made.add_argument("--gib", type=float, default=0.0)
    made.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = made.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    own = {"NCCL_HOSTID": f"node-{options.rank}", "NCCL_IB_DISABLE": "1", **NO_MULTICAST}
    for name, value in own.items():
        os.environ.setdefault(name, value)
    perform(options, Rank(options))


if __name__ == "__main__":
    main()
