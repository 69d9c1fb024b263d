"""Checkpointer with the real PyTorch on the CPU, with gloo: FSDP2 and one process, and what may go wrong."""

import random
import socket
from pathlib import Path
from typing import Any

import pytest

from gcr.checkpoints.run import run_in

SLOW = [pytest.mark.slow, pytest.mark.timeout(3600)]

SLOW_DISK = Path(__file__).parent / "slow_disk"


@pytest.mark.parametrize("world", [1, 2])
def test_a_training_goes_on_as_if_it_had_not_ended(ranks: Any, tmp_path: Path, world: int) -> None:
    whole, parts = str(tmp_path / "whole"), str(tmp_path / "parts")
    _, straight = ranks("trains", world, store=whole, steps=6)[0]
    ranks("trains", world, store=parts, steps=3)
    first, resumed = ranks("trains", world, store=parts, steps=6)[0]
    assert (first, resumed) == (3, straight)
    assert run_in(parts, "train").steps() == [1, 2, 3, 4, 5, 6]
    at = run_in(parts, "train").manifest(6).timings
    assert {*at} == {"returned", "safe", "drained", "written"}
    assert 0 < max(at["returned"], at["safe"], at["drained"]) < at["written"] < 60


def test_a_training_of_two_ranks_is_loaded_by_four_and_by_one(ranks: Any, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    _, saved = ranks("trains", 2, store=store, steps=3)[0]
    for world in (4, 1):
        assert ranks("looks", world, store=store) == [(3, saved)] * world


@pytest.mark.parametrize("world", [1, 2])
def test_old_steps_go_but_for_those_that_a_rule_keeps(ranks: Any, tmp_path: Path, world: int) -> None:
    store = tmp_path / "store"
    assert ranks("keeps", world, store=str(store)) == [([4, 8, 9], 9)] * world
    assert run_in(store, "train").store().clean() == 0  # what only the others needed is gone as well


def test_a_save_begins_while_an_old_step_is_removed(ranks: Any, tmp_path: Path) -> None:
    assert ranks("removes", store=str(tmp_path / "store")) == [((True, False, [1, 2]), [3])]


def test_a_part_that_rests_keeps_no_old_step(ranks: Any, tmp_path: Path) -> None:
    """Of 4.25 MiB each, packs of the last step are there, without those of the one before."""
    assert max(ranks("rests", store=str(tmp_path / "store"))[0]) < 4.5 * (1 << 20)


@pytest.mark.parametrize("world", [1, 2])
def test_compressed_steps_load_bit_for_bit(ranks: Any, tmp_path: Path, world: int) -> None:
    for stored, why, *right in ranks("compresses", world, store=str(tmp_path / "store"), slow_disk=None, compress="on"):
        assert max(stored) < 0.9
        assert (why, right) == ("on: asked for", [3, True, True])


def test_on_a_slow_disk_the_second_save_is_compressed(ranks: Any, tmp_path: Path) -> None:
    arguments = {"store": str(tmp_path / "store"), "slow_disk": str(SLOW_DISK), "compress": "auto"}
    ((stored, why, *right),) = ranks("compresses", **arguments)
    assert why.startswith("on: the store takes "), why
    assert stored[0] == 1
    assert max(stored[1:]) < 0.9
    assert right == [3, True, True]


@pytest.mark.parametrize("world", [1, 2])
def test_a_save_that_fails_ends_no_training(ranks: Any, tmp_path: Path, world: int) -> None:
    found = ["NotSaved: NotSaveable", None, "NotSaved: UsageError", "NotSaved: UsageError", "NotSaved: NotSaveable"]
    found += [None, "NotSaved: RunBusy"] if world == 1 else [None]
    for errors, steps, said in ranks("fails", world, store=str(tmp_path / "store")):
        assert (errors, steps) == (found, [2, 6])
        assert said == len([error for error in found if error])


def test_errors_are_raised_where_that_was_asked_for(ranks: Any, tmp_path: Path) -> None:
    errors, steps = ranks("raises", store=str(tmp_path / "store"))[0]
    assert errors[0] == (
        "not_saved 4: run train: step 1 is not saved: a: a meta tensor, which has no bytes, cannot be saved"
    )
    assert (errors[1:], steps) == ([None, None, None], [2])


@pytest.mark.parametrize("world", [1, 2])
def test_a_save_that_finds_no_room_is_skipped_on_all_ranks(ranks: Any, tmp_path: Path, world: int) -> None:
    arguments = {"faults": str(tmp_path / "faults"), "when_full": "skip", "in_flight": 1}
    for found in ranks("crowds", world, store=str(tmp_path / "store"), **arguments):
        assert found == (True, [False, True, True], ["NoneType", "NotSaved", "NotSaved"], [1])


@pytest.mark.parametrize("in_flight", [1, 3])
def test_saves_wait_for_room_and_are_made_in_order(ranks: Any, tmp_path: Path, in_flight: int) -> None:
    arguments = {"faults": str(tmp_path / "faults"), "when_full": "wait", "in_flight": in_flight}
    early, skipped, errors, steps = ranks("crowds", store=str(tmp_path / "store"), **arguments)[0]
    assert early
    assert steps == [*range(1, in_flight + 1), 9]
    assert (set(skipped), set(errors)) == ({False}, {"NoneType"})


def test_the_other_ranks_go_on_when_one_is_killed_in_a_save(ranks: Any, tmp_path: Path) -> None:
    arguments = {"store": str(tmp_path / "store"), "faults": str(tmp_path / "faults")}
    first, second = ranks.ended("loses_a_rank", 2, **arguments)
    assert (first.result, second.code) == (("NotSaved", [1]), -9), first


@pytest.mark.parametrize("seed, instants", [(0, 6), *(pytest.param(n, 250, marks=SLOW) for n in (1, 2, 3, 4))])
def test_the_newest_step_loads_whichever_rank_was_killed_and_whenever(
    ranks: Any, tmp_path: Path, seed: int, instants: int
) -> None:
    """Several saves are under way, and old steps are removed. A step that a rank was told of is never lost."""
    store, drawn, known = str(tmp_path / "store"), random.Random(seed), 0
    for number in range(instants):
        instant = {"victim": number % 2, "saves": drawn.randrange(4), "after": drawn.uniform(0, 0.1)}
        ended = ranks.ended("is_killed", 2, store=store, **instant)
        assert ended[number % 2].code == -9, ended
        assert ended[1 - number % 2].result, ended
        found, right, told = ended[1 - number % 2].result
        assert (found >= known, right) == (True, True)
        known = max(found, told)
    assert known > instants // 10
    assert run_in(store, "train").verify(run_in(store, "train").latest() or 0) > 0


def test_after_an_interrupt_the_next_save_is_made(ranks: Any, tmp_path: Path) -> None:
    arguments = {"store": str(tmp_path / "store"), "faults": str(tmp_path / "faults")}
    assert ranks("is_interrupted", **arguments) == [(True, [1, 3])]


@pytest.mark.parametrize(
    "arguments",
    [
        *({"on_error": "ignore"}, {"when_full": "fail"}, {"in_flight": 0}, {"keep_last": 0}, {"slowdown": 0.0}),
        {"way": "auto"},
        *({"in_flight": "auto"}, {"in_flight": "many", "slowdown": 0.1}, {"slowdown": 1.0}, {"threads": 0}),
        *({"chunk_bytes": 1000}, {"compress": "zip"}),
    ],
)
def test_wrong_settings_are_refused(ranks: Any, tmp_path: Path, arguments: dict[str, Any]) -> None:
    assert ranks("makes", store=str(tmp_path / "store"), arguments=arguments) == ["usage"]


def test_states_have_the_names_that_pytorch_gives_them(ranks: Any, tmp_path: Path) -> None:
    (found,) = ranks("names", store=str(tmp_path / "store"))
    assert {name for name, (_, same) in found.items() if not same} == set()
    assert {name for name, (is_plain, _) in found.items() if not is_plain} == {"wrapped", "compiled"}


def test_a_save_that_the_worker_cannot_make_is_staged_and_says_why(ranks: Any, tmp_path: Path) -> None:
    """Without gcr run, with gaps in a tensor, and with a daemon that greets nobody; that one is not asked again."""
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(run / "gcrd.sock"))
        silent.listen()
        ways = ranks("stages", store=str(tmp_path / "store"), socket=str(run / "gcrd.sock"))[0]
    assert [(way, right) for way, _, right in ways] == [("staged", True)] * 4
    whys = [why for _, why, _ in ways]
    assert whys[0] == "this program is not under gcr run"
    assert whys[1] == "a tensor of (3, 2) does not lie in one piece on cpu"
    assert whys[3] == "gcr did not answer a moment ago", whys
