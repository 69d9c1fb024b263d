"""The choice of `gcr tune`, compared with all others: threads, chunk sizes and saves in flight, on a real disk.

    python benchmarks/tuned_saves.py FOLDER [--mib 128] [--saves 3] [--rounds 3] [--out FILE]

FOLDER is on the disk in question; what is written there is removed. A training on the CPU saves a state, all of which
each step changes, as fast as its saves are written: `in_flight` of them may be under way, and one more waits. The rate
of a way is the bytes of a save, by the seconds from one durable save to the next. The ways take turns, round after
round; the best round of each counts, since other work makes none faster. The choice is made before, by `gcr tune`'s own
measurement, for the seconds that a save blocks here. It needs PyTorch.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gcr.checkpoints.measuring import CHUNKS, THREADS, measured
from gcr.checkpoints.tuning import MEMORY_SHARE, Choice, Load, chosen
from gcr.memory.hostmemory import available_host_bytes
from gcr.torch import Checkpointer

MIB = 1 << 20
FLYING = (1, 2)
STEP_S = 0.001
SLOWDOWN = 0.9  # with steps this short the disk is the bound, as it is for this search

Way = tuple[int, int, int]  # threads, bytes of a chunk, saves in flight


def saved(folder: Path, way: Way, model: nn.Module, saves: int) -> float:
    """Returns the seconds from one durable save to the next."""
    threads, chunk, flying = way
    with (
        tempfile.TemporaryDirectory(dir=folder) as store,
        Checkpointer(store, threads=threads, chunk_bytes=chunk, in_flight=flying, keep_last=1) as keeper,
    ):
        ends: list[float] = []
        for step in range(saves + 1):
            with torch.no_grad():
                for each in model.parameters():
                    each.add_(1.0)
            save = keeper.save(step, {"model": model})
            save.durable.add_done_callback(lambda _: ends.append(time.monotonic()))
        keeper.wait()
        assert save.durable.exception() is None
        return (ends[-1] - ends[0]) / saves


def blocked_s(folder: Path, model: nn.Module) -> float:
    """Returns the seconds that a save blocks which waits for no other."""
    found = []
    with tempfile.TemporaryDirectory(dir=folder) as store, Checkpointer(store, keep_last=1) as keeper:
        for step in range(4):
            found.append(keeper.save(step, {"model": model}).blocked_s)
            keeper.wait()
    return statistics.median(found[1:])


def choice_for(folder: Path, model: nn.Module, nbytes: int) -> Choice:
    load = Load(nbytes, STEP_S, blocked_s(folder, model), SLOWDOWN, int(MEMORY_SHARE * available_host_bytes()))
    return chosen(measured(folder, nbytes), load)


def searched(folder: Path, model: nn.Module, saves: int, rounds: int) -> Iterator[dict[Way, list[float]]]:
    """Yields the seconds of a save by each way, a figure for each round so far."""
    found: dict[Way, list[float]] = {way: [] for way in product(THREADS, CHUNKS, FLYING)}
    for number in range(rounds):
        for way in [*found][:: 1 if number % 2 else -1]:  # a disk that changes meanwhile is not unfair to the last
            found[way].append(saved(folder, way, model, saves))
        yield found


def compared(choice: Choice, nbytes: int, found: dict[Way, list[float]]) -> dict[str, Any]:
    rates = {way: nbytes / min(took) for way, took in found.items()}
    ours = (choice.threads, choice.chunk_bytes, min(choice.in_flight, max(FLYING)))
    best = max(rates, key=rates.__getitem__)
    return {
        "bytes": nbytes,
        "choice": {"way": ours, "bytes_per_s": rates[ours], "foretold_bytes_per_s": nbytes / choice.write_s},
        "best": {"way": best, "bytes_per_s": rates[best]},
        "of_the_best": rates[ours] / rates[best],
        "load": os.getloadavg()[0],
        "rows": [{"way": way, "bytes_per_s": rates[way], "seconds": found[way]} for way in found],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    nbytes = given.mib * MIB
    model = nn.ParameterList([nn.Parameter(torch.rand(MIB)) for _ in range(given.mib // 4)])
    choice = choice_for(given.folder, model, nbytes)
    for found in searched(given.folder, model, given.saves, given.rounds):
        report = compared(choice, nbytes, found)
        for row in report["rows"]:
            threads, chunk, flying = row["way"]
            rate = row["bytes_per_s"] / 1e6
            print(f"{threads} threads, chunks of {chunk >> 10:5} KiB, {flying} in flight: {rate:6.0f} MB/s")
        print({key: value for key, value in report.items() if key != "rows"}, flush=True)
        if given.out:
            given.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
