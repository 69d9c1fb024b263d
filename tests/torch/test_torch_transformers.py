"""GcrCallback with the real Trainer on the CPU: a resumed training equals a straight one, bit for bit."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from gcr.checkpoints.run import run_in

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="Transformers is not installed")

EVALUATES = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "metric_for_best_model": "loss",
    "restore_callback_states_from_checkpoint": True,
}


def test_a_training_that_was_killed_and_stopped_is_the_one_that_went_straight(ranks: Any, tmp_path: Path) -> None:
    """Ten steps, five of an epoch: it is killed within the first epoch, and stopped at its end."""
    store, arguments = str(tmp_path / "store"), {"steps": 9, "accumulate": 2, **EVALUATES}
    _, asked, said, straight = ranks("trainer_programs.trains", store=None, **arguments)[0]
    assert ranks.ended("trainer_programs.trains", 1, store=store, kill_at=5, **arguments)[0].code == -9
    newest = run_in(store, "train").latest()
    assert newest in (2, 4)  # the save of step 4 begins when that of step 2 is over
    began, *_ = ranks("trainer_programs.trains", store=store, stop_at=5, **arguments)[0]
    assert (began, run_in(store, "train").steps()) == (newest, [2, 4, 5])
    began, after, resumed, found = ranks("trainer_programs.trains", store=store, **arguments)[0]
    assert began == 5
    assert found == straight
    assert after == asked[-len(after) :] and len(after) > 10
    assert resumed.items() <= said.items() and "9 loss" in resumed
    assert run_in(store, "train").steps() == [6, 8, 9]


def test_so_it_is_on_two_ranks(ranks: Any, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    straight = ranks("trainer_programs.trains", 2, store=None, steps=6)
    killed = ranks.ended("trainer_programs.trains", 2, store=store, steps=6, kill_at=5)
    assert [each.code for each in killed] == [-9, -9]
    newest = run_in(store, "train").latest()
    again = ranks("trainer_programs.trains", 2, store=store, steps=6)
    for (_, asked, said, whole), (began, after, resumed, found) in zip(straight, again, strict=True):
        assert (began, found) == (newest, whole) and newest in (2, 4)
        assert after == asked[-len(after) :] and len(after) >= 4
        assert resumed.items() <= said.items()
    assert "6 loss" in resumed


def test_it_saves_as_often_as_the_trainer_would(ranks: Any, tmp_path: Path) -> None:
    """Also where the Trainer is not begun by `resume`; and the rest is refused by name."""
    steps, said = ranks("trainer_programs.answers", store=str(tmp_path / "store"))[0]
    assert steps == [3, 5] + [8, 10], "and, with a slowdown, when a save is due, and at the end"
    assert said[0] == "run mine has step 5, and this training does not begin from it"
    assert ["step 3 already" in said[1], "step 5 already" in said[2]] == [True, True]
    assert said[3:] == [
        "the Trainer has no GcrCallback",
        "every is 1 or more",
        "every and slowdown: one of the two says when to save",
        "the callback saves no training by FSDP",
    ]


def test_the_interface_is_what_it_was_when_this_was_written(ranks: Any) -> None:
    """Transformers 5.17 to 5.24, Accelerate 1.15."""
    name, signatures, state, events, wrapped = ranks("trainer_programs.interface")[0]
    assert name == "trainer_state.json"
    assert signatures["_load_from_checkpoint"] == ["self", "resume_from_checkpoint", "model"]
    assert signatures["_load_rng_state"] == ["self", "checkpoint"]
    assert signatures["store_flos"] == ["self"]
    assert "resume_from_checkpoint" in signatures["train"]
    assert {"global_step", "save_steps", "is_world_process_zero", "stateful_callbacks"} <= {*state}
    events_used = {"train_begin", "train_end", "epoch_begin", "epoch_end", "step_begin", "step_end"}
    assert {f"on_{event}" for event in events_used} <= {*events}
    assert wrapped == (True, None)
