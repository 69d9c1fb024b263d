"""The parent of PyTorch's ranks: a process each. It tells them when to take a step and says what they computed.

The parent uses no device. At the end the ranks make one more group and use it, then say their digests.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dialogue import note

ANSWER_SECONDS = 120.0
STEPS = 5  # of the ranks, in one of the program
BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
GIB = 1 << 30

Part = Callable[[int, int, Any], Any]  # of a rank, of how many, on which device


def serve(rank: int, ranks: int, part: Part, kind: str, gib: float, meeting: str, pipe: Any) -> None:
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    group = torch.distributed
    more = {"device_id": device} if kind == "cuda" else {}
    group.init_process_group(BACKENDS[kind], init_method=f"file://{meeting}", rank=rank, world_size=ranks, **more)
    held = torch.full((int(gib * GIB) // 8,), 257 + rank, dtype=torch.int64, device=device)
    program = part(rank, ranks, device)
    while (word := pipe.recv()) != "end":
        if word == "step":
            pipe.send(" ".join(program.step() for _ in range(STEPS)))
        else:
            pipe.send(f"{program.digest()} held {int(held.sum())} together {together(torch, device)}")
    del program  # NCCL's communicator waits for the graphs that hold its work
    group.destroy_process_group()


def together(torch: Any, device: Any) -> int:
    """Returns the sum of the ranks' numbers plus one each, by a group that is made for it."""
    group = torch.distributed.new_group()
    number = torch.tensor([torch.distributed.get_rank() + 1], device=device)
    torch.distributed.all_reduce(number, group=group)
    return int(number)


class Ranks:
    def __init__(self, count: int, part: Part, kind: str = "cuda", gib: float = 0.0) -> None:
        import torch.multiprocessing as mp

        context = mp.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        meeting = str(Path(self.folder.name) / "meeting")
        pipes = [context.Pipe() for _ in range(count)]
        self.pipes = [ours for ours, _ in pipes]
        self.ranks = [
            context.Process(target=serve, args=(rank, count, part, kind, gib, meeting, theirs), daemon=True)
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
