"""Checkpointer.due with the real PyTorch: one answer on all ranks, and the bound."""

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("world", [1, 2])
def test_all_ranks_save_when_it_is_due_and_lose_no_more_than_allowed(ranks: Any, tmp_path: Path, world: int) -> None:
    """The first save is due after eight steps. The last one is not earned yet."""
    found = ranks("pacing_programs.paces", world, store=str(tmp_path / "store"), steps=150, slow_rank=world - 1)
    assert len({tuple(due) for due, *_ in found}) == 1
    due, steps, blocked_s, took, chunks = found[0]
    assert (due[0], due == list(steps), chunks) == (7, True, {1 << 20})
    assert len(due) >= 2
    assert blocked_s < 0.1 * took + blocked_s / len(due) * 3


def test_due_needs_a_slowdown(ranks: Any, tmp_path: Path) -> None:
    found = ranks("pacing_programs.is_alone_asked", store=str(tmp_path / "store"))
    assert found == [("usage", 'Checkpointer("/data/run", slowdown=0.03)')]


def test_no_save_is_due_where_a_rank_is_gone(ranks: Any, tmp_path: Path) -> None:
    first, second = ranks.ended("pacing_programs.loses_a_rank", 2, store=str(tmp_path / "store"))
    assert (second.code, first.result) == (0, [False] * 20), first


def test_the_bytes_of_a_state(ranks: Any) -> None:
    assert ranks("pacing_programs.measures") == [(4003, 0)]
