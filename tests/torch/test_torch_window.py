"""Windows, with the real PyTorch on the processor: what is read in place, the wait of a step, and what may go wrong."""

from typing import Any

import pytest

STEPPED = ["model.norm.weight", "model.out.bias", "model.out.weight"]
OPTIMIZER = sorted(f"optimizer.state.{name[6:]}.{each}" for name in STEPPED for each in ("exp_avg", "exp_avg_sq"))
STATED = [*STEPPED, *OPTIMIZER]
FROZEN = ["model.frozen.bias", "model.frozen.weight"]
NO_ROOM = "the device has no room for a copy"


def test_only_what_a_step_writes_is_read_in_place(ranks: Any) -> None:
    """Not buffers, loose tensors, a weight that its module writes in forward, nor what no seen step would guard."""
    (found,) = ranks("window_programs.chooses")
    assert found["ring 0"] == ("window", NO_ROOM, STATED)
    assert found["ring 40"][:2] == ("ring", "the device has room for a copy of 17 % of what a step writes")
    assert found["ring 1048576"][:2] == ("copy", "")
    assert found["window 1048576"] == ("window", "it was asked for", sorted(FROZEN + STATED))
    assert found["copy 0"] == ("copy", "", [])
    assert found["staged 0"][:2] == ("staged", "it was asked for")
    assert found["no step"] == found["dictionaries"] == ("copy", "", [])
    assert found["two"] == ("window", NO_ROOM, sorted([*STATED, "words.state.words.weight.momentum_buffer"]))
    assert found["captured"] == ("window", NO_ROOM, STATED)
    why = "the state has no optimizer of torch.optim whose step could wait"
    assert found["window dictionaries"] == ("copy", why, [])


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}], ids=str)
def test_a_step_waits_and_the_save_has_the_bytes_of_its_call(ranks: Any, options: dict[str, bool]) -> None:
    way, moved, wrong, first, second = ranks("window_programs.waits", options=options)[0]
    assert (way, moved, wrong, second) == ("window", True, [], 0.0)
    assert first > 0.2


@pytest.mark.parametrize(
    "how, what, later",
    [
        ("custom", "model.out.weight and 1 more", OPTIMIZER[2:]),
        (
            "state",
            "optimizer.state.out.weight.exp_avg",
            ["model.out.bias", "model.out.weight", *OPTIMIZER[2:4], OPTIMIZER[5]],
        ),
    ],
)
def test_a_write_that_is_no_step_fails_the_save_and_is_copied_from_then_on(
    ranks: Any, how: str, what: str, later: list[str]
) -> None:
    error, names = ranks("window_programs.is_written", how=how)[0]
    assert error == f"{what}: something else than an optimizer's step wrote it before it was read"
    assert names == later


def test_memory_that_is_taken_from_a_tensor_fails_the_save(ranks: Any) -> None:
    assert "model.out.weight: something else" in ranks("window_programs.is_written", how="storage")[0]


def test_no_step_waits_for_ever(ranks: Any) -> None:
    late, dead, child, interrupted, compiled = ranks("window_programs.comes_to_an_end")[0]
    assert late == ("DeadlinePassed", True, "gcr did not answer a moment ago")
    assert dead == ("PeerGone", True)
    assert child == (7, False)
    assert interrupted == (None, True)
    assert compiled == "copy"


def test_shards_are_read_in_place_on_every_rank(ranks: Any) -> None:
    for (way, _, names), error in ranks("window_programs.shards", 2):
        assert (way, len(names)) == ("window", 9)
        assert error == "model.1.weight: something else than an optimizer's step wrote it before it was read"
