"""Trainings that ask `Checkpointer.due` whether to save."""

import logging
import time
from typing import Any

import torch

from gcr.errors import GcrError
from gcr.torch import Checkpointer
from gcr_torch.pacing import nbytes


def paces(rank: int, world: int, store: str, steps: int, slow_rank: int) -> Any:
    """Returns the steps that were due, seconds that saves blocked, of all, and the most saves that may be under way.

    One rank is slower in Python; the others wait for it at the end of each step, as in a training. On a busy machine
    there are up to ten times as many steps, until two saves were due.
    """
    state = {"weights": torch.arange(1 << 18, dtype=torch.float32)}
    due, blocked_s, began = [], 0.0, time.monotonic()
    with Checkpointer(store, slowdown=0.1, in_flight="auto", threads=2, chunk_bytes=1 << 20) as keeper:
        for step in range(10 * steps):
            if step >= steps and len(due) >= 2:
                break
            time.sleep(0.02 if rank == slow_rank else 0.01)
            state["weights"] += 1
            if world > 1:
                torch.distributed.barrier()
            if keeper.due(step):
                due.append(step)
                blocked_s += keeper.save(step, state).blocked_s
        took = time.monotonic() - began
        keeper.wait()
        chunks = {keeper.run.manifest(step).chunk_bytes for step in keeper.steps()}
        return due, keeper.steps(), blocked_s, took, chunks


def is_alone_asked(rank: int, world: int, store: str) -> Any:
    """Returns the hint of an answer that no slowdown was given for."""
    with Checkpointer(store) as keeper:
        try:
            keeper.due(1)
        except GcrError as error:
            return error.code, error.hint
    return None


def loses_a_rank(rank: int, world: int, store: str) -> Any:
    """Returns what the first rank is told when the other has gone."""
    logging.disable()
    keeper = Checkpointer(store, slowdown=0.1, timeout_s=5)
    torch.distributed.barrier()  # or the first one may still be connecting
    if rank == 1:
        return None
    return [keeper.due(step) for step in range(20)]


def measures(rank: int, world: int) -> Any:
    """Returns the bytes of states with a tensor that occurs twice, and with none."""
    tensor = torch.zeros(1000)
    return nbytes({"a": tensor, "b": [tensor, (torch.zeros(3, dtype=torch.int8),)], "c": 7}), nbytes({"c": "text"})
