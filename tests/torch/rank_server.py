"""Imports PyTorch once and forks groups of ranks: to import it takes each process 2 to 3 seconds.

`python rank_server.py`: reads pickled orders from stdin, and writes an answer for each to stdout.
"""

import importlib
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 60.0  # seconds for all ranks of a group


class Order(NamedTuple):
    """A program that so many ranks are to run: of rank_programs or training_programs, else `module.program`."""

    program: str
    world: int
    arguments: dict[str, Any]


class Outcome(NamedTuple):
    """The end of one rank: what its program returned, else its traceback; `code` is negative for a signal."""

    code: int
    result: Any
    error: str


def serve() -> None:
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    sys.path[:0] = [str(Path(__file__).parent)]
    import rank_programs
    import training_programs

    programs = {**vars(rank_programs), **vars(training_programs)}
    while True:
        try:
            order = Order(*pickle.load(orders))
        except EOFError:
            return
        if order.program not in programs:  # in this process: its ranks are forked from it
            module, _, name = order.program.partition(".")
            programs[order.program] = getattr(importlib.import_module(module), name)
        with tempfile.TemporaryDirectory() as folder:
            pickle.dump([tuple(each) for each in run(order, folder, programs)], answers)
        answers.flush()


def run(order: Order, folder: str, programs: dict[str, Any]) -> Sequence[Outcome]:
    ranks = []
    for rank in range(order.world):
        out, into = os.pipe()
        if not (pid := os.fork()):
            os.close(out)
            work(order, rank, folder, into, programs)
        os.close(into)
        ranks.append((pid, out))
    return collected(ranks)


def work(order: Order, rank: int, folder: str, into: int, programs: dict[str, Any]) -> None:
    """Is one rank, and ends."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    outcome: tuple[Any, str] = None, ""
    try:
        if order.world > 1:
            dist.init_process_group(
                "gloo", f"file://{folder}/met", timedelta(seconds=20), world_size=order.world, rank=rank
            )
            dist.barrier()  # one that ends at once would break the connections of others
        outcome = programs[order.program](rank, order.world, **order.arguments), ""
    except BaseException:
        outcome = None, traceback.format_exc()
    with os.fdopen(into, "wb") as file:
        pickle.dump(outcome, file)
    os._exit(0)  # the process group waits for nobody


def collected(ranks: Sequence[tuple[int, int]]) -> Sequence[Outcome]:
    """Waits for all ranks; those that are not over in time are killed, and say so."""
    end, said = time.monotonic() + PATIENCE, {out: b"" for _, out in ranks}
    left = {*said}
    while left and (patience := end - time.monotonic()) > 0:
        for out in select.select([*left], [], [], patience)[0]:
            if data := os.read(out, 1 << 20):
                said[out] += data
            else:
                left.remove(out)
    found = []
    for pid, out in ranks:
        if out in left:
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(out)
        result, error = pickle.loads(said[out]) if said[out] and out not in left else (None, "")
        found.append(Outcome(code, result, "it hangs" if out in left else error))
    return found


if __name__ == "__main__":
    serve()
