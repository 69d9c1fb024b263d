"""GcrCheckpointIO with the real Lightning on the CPU: a resumed training equals a straight one, bit for bit."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from gcr.checkpoints.run import run_in

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("lightning"), reason="Lightning is not installed")


@pytest.mark.parametrize("world", [1, 2])
def test_a_training_that_was_killed_is_the_one_that_went_straight(ranks: Any, tmp_path: Path, world: int) -> None:
    store, mine, theirs = (str(tmp_path / name) for name in ("store", "mine", "theirs"))
    straight = ranks("lightning_programs.trains", world, store=None, folder=theirs, steps=12)
    killed = ranks.ended("lightning_programs.trains", world, store=store, folder=mine, steps=12, kill_at=7)
    assert {each.code for each in killed} == {-9}
    resumed = ranks("lightning_programs.trains", world, store=store, folder=mine, steps=12)
    assert {began for began, *_ in straight} == {0}
    assert {began for began, *_ in resumed} == {6}
    assert [found for _, found, _ in resumed] == [found for _, found, _ in straight]
    files = resumed[0][2]
    assert {*files} >= {*straight[0][2]} and len(straight[0][2]) == 3  # two best and the last one
    run = run_in(store, "train")
    named = {json.loads(Path(mine, name).read_text())["step"] for name in files}
    assert {*run.steps()} >= named
    assert len(run.steps()) <= len(files) + 2  # which the kill left: one without a file yet, one that was to go
    assert all(run.verify(step) > 0 for step in run.steps())


def test_checkpoints_are_what_was_saved_and_go_in_their_turn(ranks: Any, tmp_path: Path) -> None:
    found = ranks("lightning_programs.keeps", store=str(tmp_path / "store"), folder=str(tmp_path))[0]
    assert found == {
        "loaded": True,
        "kinds": (True, "Parameter", True),
        "steps": [10, 11],
        "after": ([12], False, {"global_step": 3}),
        "plain": {"a": 1},
        "plain removed": True,
        "wrong": ["usage", "usage", "usage", "wrong_image"],
        "stays": (True, False, True, True),
    }


def test_the_interface_of_lightning_is_what_it_was_when_this_was_written(ranks: Any) -> None:
    """Lightning 2.6.6."""
    methods, ours, taken = ranks("lightning_programs.interface")[0]
    assert methods == {
        "save_checkpoint": ["self", "checkpoint", "path", "storage_options"],
        "load_checkpoint": ["self", "path", "map_location", "weights_only"],
        "remove_checkpoint": ["self", "path"],
        "teardown": ["self"],
    }
    assert ours == methods
    assert taken == [True, True]
