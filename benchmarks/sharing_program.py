"""Ranks of PyTorch, a process and a device each, that do NCCL's collectives as they are told.

Prints `ready` once each rank has a context; then a JSON line for a line, a list with each rank's answer. Times are in
seconds.

    start                 makes the communicator of all ranks, and its first all_reduce: the time of both
    end                   ends it
    more                  makes one more communicator, and its first all_reduce: the time of both; and ends it
    reduce BYTES COUNT    all_reduces of so many bytes, one behind the other: the device's time for each
    queue COUNT           all_reduces of 8 bytes, one behind the other: the host's time for each, the device's for all
    alone COUNT           all_reduces of 8 bytes, each waited for: the time of each
    digest                the checksums of what it holds (--gib)

--busy: makes the communicator at once. Until a line comes, the ranks do all_reduces, and compare the sums.
"""

import argparse
import json
import multiprocessing
import os
import select
import sys
import tempfile
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "victims"))

from dialogue import say
from torch_fill import Fill

GIB = 1 << 30
BUFFER = GIB // 2
WORDS = 8 << 20  # of 8 bytes, that busy ranks sum
ROUNDS = 20  # of busy ranks, without a wait
WARM = 5
CORES = 4  # of each rank: the same ones in every program
ANSWER_SECONDS = 200.0


class Rank:
    def __init__(self, rank: int, options: argparse.Namespace, folder: str) -> None:
        import torch

        self.torch, self.group, self.folder = torch, torch.distributed, folder
        self.rank, self.ranks = rank, options.ranks
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        self.starts = self.rounds = 0
        self.word = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.mine = torch.full((WORDS if options.busy else 1,), rank + 1, dtype=torch.int64, device=self.device)
        self.round, self.sum = torch.zeros_like(self.mine), torch.zeros_like(self.mine)
        total = int(options.gib * GIB)
        self.fill = Fill(total, max(1, total // BUFFER), 0) if total else None
        torch.cuda.synchronize()

    def do(self, line: str) -> Any:
        word, *numbers = line.split()
        return getattr(self, word)(*map(int, numbers))

    # ---- communicators ----------------------------------------------------------------------------------------

    def start(self) -> float:
        self.starts += 1
        began = perf_counter()
        self.group.init_process_group(
            "nccl",
            init_method=f"file://{self.folder}/meeting{self.starts}",
            rank=self.rank,
            world_size=self.ranks,
            device_id=self.device,
        )
        self.group.all_reduce(self.word)
        self.torch.cuda.synchronize()
        return perf_counter() - began

    def end(self) -> None:
        self.group.destroy_process_group()

    def more(self) -> float:
        began = perf_counter()
        made = self.group.new_group()
        self.group.all_reduce(self.word, group=made)
        self.torch.cuda.synchronize()
        took = perf_counter() - began
        self.group.destroy_process_group(made)
        return took

    # ---- collectives ------------------------------------------------------------------------------------------

    def reduce(self, size: int, count: int) -> list[float]:
        data = self.torch.zeros(size // 4, dtype=self.torch.float32, device=self.device)
        events = [(self.event(), self.event()) for _ in range(WARM + count)]
        for begin, end in events:
            begin.record()
            self.group.all_reduce(data)
            end.record()
        self.torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1000 for begin, end in events[WARM:]]

    def queue(self, count: int) -> dict[str, Any]:
        self.alone(WARM)
        begin, end = self.event(), self.event()
        at = [perf_counter()]
        begin.record()
        for _ in range(count):
            self.group.all_reduce(self.word)
            at.append(perf_counter())
        end.record()
        self.torch.cuda.synchronize()
        return {"host_s": differences(at[1:]), "device_s": begin.elapsed_time(end) / 1000}

    def alone(self, count: int) -> list[float]:
        at = [perf_counter()]
        for _ in range(count):
            self.group.all_reduce(self.word)
            self.torch.cuda.synchronize()
            at.append(perf_counter())
        return differences(at)

    def event(self) -> Any:
        return self.torch.cuda.Event(enable_timing=True)

    # ---- a job that is swapped --------------------------------------------------------------------------------

    def work(self) -> None:
        """Adds up what all ranks have, again and again. Raises ValueError for a wrong sum."""
        for _ in range(ROUNDS):
            self.round.copy_(self.mine)
            self.group.all_reduce(self.round)
            self.sum.add_(self.round)
        self.rounds += ROUNDS
        right = self.rounds * self.ranks * (self.ranks + 1) // 2
        if not bool((self.sum == right).all()):
            raise ValueError(f"rank {self.rank}: a sum is not {right}")

    def digest(self) -> str:
        return self.fill.answer() if self.fill else ""


def differences(at: list[float]) -> list[float]:
    return [round(later - earlier, 9) for earlier, later in pairwise(at)]


def pin(rank: int, ranks: int) -> None:
    """Restricts all threads of this process, and those to come, to cores of its rank."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // ranks
    if share < CORES:
        return
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), cores[rank * share : rank * share + CORES])


def serve(number: int, options: argparse.Namespace, folder: str, pipe: Any) -> None:
    rank = Rank(number, options, folder)
    pin(number, options.ranks)
    pipe.send("ready")
    try:
        while True:
            pipe.send(rank.do(pipe.recv()))
    except (EOFError, OSError):  # the parent has ended
        os._exit(0)


class Ranks:
    """The processes, as their parent sees them; it uses no device."""

    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(options.ranks)]
        self.pipes = [ours for ours, _ in pipes]
        for rank, (_, theirs) in enumerate(pipes):
            context.Process(target=serve, args=(rank, options, folder, theirs), daemon=True).start()
            theirs.close()
        self.hear()

    def ask(self, line: str) -> list[Any]:
        for pipe in self.pipes:
            pipe.send(line)
        return self.hear()

    def hear(self) -> list[Any]:
        return [self.answer(rank) for rank in range(len(self.pipes))]

    def answer(self, rank: int) -> Any:
        if not self.pipes[rank].poll(ANSWER_SECONDS):
            raise SystemExit(f"rank {rank} says nothing for {ANSWER_SECONDS:.0f} s")
        return self.pipes[rank].recv()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--gib", type=float, default=0.0, help="of device memory that each rank holds besides")
    parser.add_argument("--busy", action="store_true")
    return parser.parse_args()


def asked() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(options, folder)
        if options.busy:
            ranks.ask("start")
        say("ready")
        while True:
            while options.busy and not asked():
                ranks.ask("work")
            line = sys.stdin.readline()
            if not line:
                return
            say(json.dumps(ranks.ask(line)))


if __name__ == "__main__":
    main()
