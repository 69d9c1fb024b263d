"""PyTorch over several devices, a process for each: NCCL, or the ranks' own kernels, carry data between them.

--kind: `ddp`, data parallel training; `fsdp`, training with FSDP2's sharded parameters; `pipeline`, training in stages;
`tensor`, inference by a captured graph with an all-reduce in each layer; `symmetric`, kernels on symmetric memory.
--transport: `p2p`, NCCL's choice between these GPUs; `shm`, host memory that the ranks share; `sockets`.
--ranks: how many; 0: one for each device. --gib: what each rank holds besides.
--device cpu: by gloo, to try this program without a GPU.
"""

import argparse
import hashlib
import itertools
import os
from typing import Any

from dialogue import parser, perform
from torch_ranks import Ranks
from torch_victim import BATCH, LENGTH, WORDS, Training

WIDTH, LAYERS = 256, 3
HIDDEN, ROWS, REPLAYS = 1024, 64, 20  # of the captured graph
MICRO_BATCHES = 4
SYMMETRIC_WORDS = 1 << 20
TRANSPORTS = {
    "p2p": {},
    "shm": {"NCCL_P2P_DISABLE": "1"},
    "sockets": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
}
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}  # bare as under gcr run


class Trained(Training):
    """One process's part of a training: a model that the ranks agree on, and data of its own."""

    def __init__(self, rank: int, device: Any) -> None:
        super().__init__(WIDTH, LAYERS, device=device)
        generator = self.torch.Generator(device).manual_seed(rank)
        self.data = itertools.repeat(self.torch.randint(0, WORDS, (BATCH, LENGTH), device=device, generator=generator))


class Replicated(Trained):
    def __init__(self, rank: int, _ranks: int, device: Any) -> None:
        super().__init__(rank, device)
        ids = [device.index] if device.type == "cuda" else None
        self.model = self.torch.nn.parallel.DistributedDataParallel(self.model, device_ids=ids)


class Sharded(Trained):
    """FSDP2: each rank has a part of each parameter, and gathers the rest layer by layer."""

    def __init__(self, rank: int, _ranks: int, device: Any) -> None:
        from torch.distributed.fsdp import fully_shard

        super().__init__(rank, device)
        for layer in self.model[1].layers:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = self.torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def digest(self) -> str:
        return digest_of(parameter.full_tensor() for parameter in self.model.parameters())


class Staged:
    """A part of the layers; activations go on to the next rank, their gradients come back (1F1B)."""

    def __init__(self, rank: int, ranks: int, device: Any) -> None:
        import torch
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        torch.manual_seed(7)
        torch.use_deterministic_algorithms(True)
        layers = [torch.nn.Sequential(torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.GELU()) for _ in range(2 * ranks)]
        self.model = torch.nn.Sequential(*layers[2 * rank : 2 * rank + 2]).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        stage = PipelineStage(self.model, rank, ranks, device)
        self.schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss)
        generator = torch.Generator(device).manual_seed(3)
        data = [torch.randn(ROWS, HIDDEN, device=device, generator=generator) for _ in range(2)]
        self.given = data[:1] if rank == 0 else []
        self.wanted = {"target": data[1]} if rank == ranks - 1 else {}

    def step(self) -> str:
        losses: list[Any] = []
        more = {**self.wanted, "losses": losses} if self.wanted else {}
        self.optimizer.zero_grad(set_to_none=True)
        self.schedule.step(*self.given, **more)
        self.optimizer.step()
        norm = sum(parameter.grad.double().square().sum() for parameter in self.model.parameters())
        return " ".join(["norm", norm.item().hex(), *(loss.item().hex() for loss in losses)])

    def digest(self) -> str:
        return digest_of(self.model.parameters())


class Captured:
    """Tensor parallel layers in one graph: each rank has half of each, and an all-reduce adds the halves up."""

    def __init__(self, rank: int, ranks: int, device: Any) -> None:
        import torch

        self.torch, self.group = torch, torch.distributed
        generator = torch.Generator(device).manual_seed(11)
        mine = slice(rank * HIDDEN // ranks, (rank + 1) * HIDDEN // ranks)
        whole = [torch.randn(HIDDEN, HIDDEN, device=device, generator=generator) for _ in range(2 * LAYERS)]
        self.layers = [
            (one[:, mine].contiguous(), two[mine].contiguous())
            for one, two in zip(whole[::2], whole[1::2], strict=True)
        ]
        self.state = torch.randn(ROWS, HIDDEN, device=device, generator=generator)
        self.graph = None
        if device.type == "cuda":
            self.graph = self.capture()

    def forward(self) -> None:
        x = self.state
        for one, two in self.layers:
            part = (x @ one).relu() @ two
            self.group.all_reduce(part)
            x = self.torch.nn.functional.layer_norm(x + part, (HIDDEN,))
        self.state.copy_(x)

    def capture(self) -> Any:
        side = self.torch.cuda.Stream()
        side.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(side):
            self.forward()  # connects the ranks
        self.torch.cuda.current_stream().wait_stream(side)
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.forward()
        return graph

    def step(self) -> str:
        for _ in range(REPLAYS):
            self.graph.replay() if self.graph else self.forward()
        return f"sum {self.state.double().sum().item().hex()}"

    def digest(self) -> str:
        return digest_of([self.state])


class Symmetric:
    """Memory of all ranks that each rank's kernels read and write, with barriers of their own."""

    def __init__(self, rank: int, ranks: int, device: Any) -> None:
        import torch
        import torch.distributed._symmetric_memory as symmetric

        self.torch, self.rank, self.ranks = torch, rank, ranks
        self.group = torch.distributed.group.WORLD.group_name
        self.mine = symmetric.empty(SYMMETRIC_WORDS, device=device, dtype=torch.float32)
        self.shared = symmetric.rendezvous(self.mine, group=self.group)
        generator = torch.Generator(device).manual_seed(rank)
        self.state = torch.randn(SYMMETRIC_WORDS, device=device, generator=generator)

    def step(self) -> str:
        for turn in range(REPLAYS):
            self.mine.copy_(self.state)
            if turn % 2:
                total = self.torch.ops.symm_mem.one_shot_all_reduce(self.mine, "sum", self.group)
            else:
                total = self.of_neighbour() + self.state
            self.state = self.torch.nn.functional.layer_norm(total + self.rank, (SYMMETRIC_WORDS,))
        return f"sum {self.state.double().sum().item().hex()}"

    def of_neighbour(self) -> Any:
        self.shared.barrier(channel=0)
        theirs = self.shared.get_buffer((self.rank + 1) % self.ranks, (SYMMETRIC_WORDS,), self.torch.float32).clone()
        self.shared.barrier(channel=1)
        return theirs

    def digest(self) -> str:
        return digest_of([self.state])


KINDS = {"ddp": Replicated, "fsdp": Sharded, "pipeline": Staged, "tensor": Captured, "symmetric": Symmetric}


def digest_of(tensors: Any) -> str:
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(tensor.detach().cpu().numpy().tobytes())
    return state.hexdigest()


def arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--kind", choices=sorted(KINDS), default="ddp")
    made.add_argument("--ranks", type=int, default=2)
    made.add_argument("--transport", choices=sorted(TRANSPORTS), default="p2p")
    made.add_argument("--gib", type=float, default=0.0)
    made.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    return made.parse_args()


def devices() -> int:
    import torch

    return torch.cuda.device_count()  # asks NVML, so the parent still uses no device


def main() -> None:
    options = arguments()
    os.environ.update(TRANSPORTS[options.transport])
    for name, value in NO_MULTICAST.items():
        os.environ.setdefault(name, value)
    perform(options, Ranks(options.ranks or devices(), KINDS[options.kind], options.device, options.gib))


if __name__ == "__main__":
    main()
