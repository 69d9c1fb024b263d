"""Distributed data parallel training by PyTorch: a process for each device; NCCL sums their gradients.

The parent uses no device: it tells the ranks when to take a step and says what they computed. --ranks: how many.
--transport: `p2p`, NCCL's choice between these GPUs; `shm`, host memory that the ranks share; `sockets`.
"""

import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

from dialogue import note, parser, perform
from torch_victim import BATCH, LENGTH, WORDS, Training

WIDTH, LAYERS = 256, 3
ANSWER_SECONDS = 120.0
STEPS = 5  # of the ranks, in one of the program
TRANSPORTS = {
    "p2p": {},
    "shm": {"NCCL_P2P_DISABLE": "1"},
    "sockets": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
}
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}  # bare as under gcr run


class Rank(Training):
    """One process's part: a model that the ranks agree on, and data of its own."""

    def __init__(self, rank: int) -> None:
        super().__init__(WIDTH, LAYERS)
        self.model = self.torch.nn.parallel.DistributedDataParallel(self.model, device_ids=[rank])
        generator = self.torch.Generator("cuda").manual_seed(rank)
        self.data = itertools.repeat(self.torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda", generator=generator))


def serve(rank: int, ranks: int, meeting: str, pipe: Any) -> None:
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.cuda.set_device(rank)
    group = torch.distributed
    group.init_process_group(
        "nccl", init_method=f"file://{meeting}", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank)
    )
    training = Rank(rank)
    while (word := pipe.recv()) != "end":
        pipe.send(" ".join(training.step() for _ in range(STEPS)) if word == "step" else training.digest())
    group.destroy_process_group()


class Ranks:
    def __init__(self, count: int) -> None:
        import torch.multiprocessing as mp

        context = mp.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        meeting = str(Path(self.folder.name) / "meeting")
        pipes = [context.Pipe() for _ in range(count)]
        self.pipes = [ours for ours, _ in pipes]
        self.ranks = [
            context.Process(target=serve, args=(rank, count, meeting, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for rank in self.ranks:
            rank.start()

    def ask(self, word: str) -> str:
        for pipe in self.pipes:
            pipe.send(word)
        return " ".join(self.answer(rank) for rank in range(len(self.pipes)))

    def answer(self, rank: int) -> str:
        if not self.pipes[rank].poll(ANSWER_SECONDS):
            raise SystemExit(f"victim: rank {rank} says nothing for {ANSWER_SECONDS:.0f} s")
        return str(self.pipes[rank].recv())

    def step(self) -> str:
        return self.ask("step")

    def digest(self) -> str:
        """Ends the ranks."""
        found = self.ask("digest")
        for pipe in self.pipes:
            pipe.send("end")
        for rank in self.ranks:
            rank.join(ANSWER_SECONDS)
        note(f"ranks ended with {[rank.exitcode for rank in self.ranks]}")
        return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--transport", choices=sorted(TRANSPORTS), default="p2p")
    options = arguments.parse_args()
    os.environ.update(TRANSPORTS[options.transport])
    for name, value in NO_MULTICAST.items():
        os.environ.setdefault(name, value)
    perform(options, Ranks(options.ranks))


if __name__ == "__main__":
    main()
