"""Ranks that map each other's device memory are swapped like any other job: at any instant, exactly, or refused."""

import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from machine import Machine, until
from p2p import FAULTS, NAME, WAYS, Group, Model, command, driver_does, error_of, is_away, prepare
from stored import store_of
from test_ranks import Heard
from worlds import SLOW, slowly

WARM = 3  # steps that a program takes before it is `ready`: dialogue.py
QUIESCE_S = "1.0"
MOST_STUCK = 3  # for each swap of ranks whose kernel has no known name
REFUSES = 999  # CUDA_ERROR_UNKNOWN
ONE = ("--one-device",)


def some_of(*ways: str) -> list[Any]:
    """Every way of lending; those that are not named are for the slow tests."""
    return [way if way in ways else slowly(way) for way in WAYS]


# ---- at random instants ------------------------------------------------------------------------------------------


class Free:
    """Ranks that run freely, and are looked at when they have ended."""

    def __init__(self, machine: Machine, ranks: int, *more: str, seed: int = 0) -> None:
        self.job, self.ranks = machine.run(NAME, *command(ranks, "--hold", *more)), ranks
        machine.targets(NAME, ranks)
        self.job.tell("on")
        self.heard, self.chance = Heard(self.job), random.Random(f"{seed} {ranks} {more}")

    def any_instant(self) -> None:
        self.heard.one_more()
        time.sleep(self.chance.uniform(0, 0.08))

    def end(self) -> tuple[list[str], int]:
        """Returns all that they said, which is right, and their number of steps."""
        said = self.heard.to_the_end()
        steps = int(next(line.split()[1] for line in said if line.startswith("steps ")))
        assert [line.strip() for line in said] == Model(self.ranks).run(steps, WARM)
        return said, steps


def swap_while_it_runs(
    machine: Machine, swaps: int, ranks: int, *more: str, known: bool = True
) -> tuple[list[str], int]:
    free, done, stuck = Free(machine, ranks, *more, seed=swaps), 0, 0
    while done < swaps:
        free.any_instant()
        gone = machine.ask("checkpoint", NAME)
        if gone.code and not known:
            assert (gone.body["error"]["code"], gone.body["error"]["state"]) == ("stuck", "running"), gone.body
            stuck += 1
            assert stuck <= MOST_STUCK * swaps
            continue
        is_away(machine, gone, ranks)
        back = machine.ask("restore", NAME)
        assert (back.code, back.body.get("state")) == (0, "running"), back.body
        done += 1
    return free.end()


@pytest.mark.parametrize("swaps", [10, slowly(100)])
def test_ranks_are_swapped_at_random_instants_and_compute_what_they_compute_bare(machine: Machine, swaps: int) -> None:
    prepare(machine, 4)
    said, steps = swap_while_it_runs(machine, swaps, 4)
    assert steps >= swaps
    bare = machine.begin_bare(*command(4, "--hold"))
    bare.tell(str(steps))
    assert said == Heard(bare).to_the_end()


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        (3, ONE),
        (2, ("--meet", "legacy")),
        (3, (*ONE, "--meet", "small")),
        (2, ("--meet", "cached")),
        pytest.param(4, ("--meet", "twice"), marks=SLOW),
    ],
    ids=["one device", "legacy", "small on one device", "cached", "twice"],
)
def test_so_are_ranks_on_one_device_and_those_that_meet_in_memory_lent_in_another_way(
    machine: Machine, ranks: int, more: Sequence[str]
) -> None:
    prepare(machine, 1 if "--one-device" in more else ranks)
    swap_while_it_runs(machine, 4, ranks, *more)


def test_so_are_ranks_whose_kernel_has_no_known_name(machine: Machine) -> None:
    prepare(machine, 2, GCR_QUIESCE_S=QUIESCE_S)
    swap_while_it_runs(machine, 3, 2, "--collective", "peer_reduce", known=False)


def test_so_are_ranks_whose_kernels_are_in_graphs(machine: Machine) -> None:
    prepare(machine, 2)
    swap_while_it_runs(machine, 6, 2, "--graphs")


def test_so_are_ranks_whose_launches_wait_for_room_in_a_queue(machine: Machine) -> None:
    prepare(machine, 2, GCR_SIM_QUEUE="3")
    swap_while_it_runs(machine, 4, 2)


@pytest.mark.parametrize("times", [2, slowly(20)])
def test_they_go_and_come_in_every_way_at_random_instants(machine: Machine, times: int) -> None:
    prepare(machine, 3)
    free, store = Free(machine, 3, seed=times), ("--store", str(store_of(machine)))
    for turn in range(times):
        for number, how in enumerate([["--data-only"], ["--leave-running"], ["--live", "--leave-running"], []]):
            image = f"image-{turn}-{number}"
            words = [*how, *(["--image", image, "--wait", "durable", *store] if number else [])]
            free.any_instant()
            gone = machine.gcr("checkpoint", NAME, *words)
            assert gone.code == 0, gone.body
            if gone.body["state"] != "running":
                back = machine.gcr("restore", *([NAME] if number == 0 else ["--image", image, *store]))
                assert back.code == 0, back.body
    free.end()


@pytest.mark.parametrize("times", [3, slowly(30)])
def test_they_change_places_at_random_instants(machine: Machine, times: int) -> None:
    prepare(machine, 3)
    free = Free(machine, 3, seed=times)
    for _ in range(times):
        free.any_instant()
        gone = machine.gcr("checkpoint", NAME)
        is_away(machine, gone, 3)
        before = [row["device"] for row in gone.body["processes"]]
        after = before[1:] + before[:1]
        back = machine.gcr("restore", NAME, *(f"--device={a}={b}" for a, b in zip(before, after, strict=True)))
        assert (back.code, back.body["moved"]) == (0, dict(zip(before, after, strict=True))), back.body
    free.end()


# ---- what is connected later -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", some_of("asked", "cached", "legacy", "event"))
def test_what_was_made_before_a_checkpoint_is_lent_after_a_restore_and_made_anew(machine: Machine, way: str) -> None:
    """Old descriptors and blobs lead to the memory as it is now; what came back by import is exported again."""
    group = Group.start(machine, ranks=2)
    group.ask(f"make {way}")
    group.swaps()
    group.ask("take 0")
    group.works()
    group.swaps()
    group.lends(way)
    group.swaps()


@pytest.mark.parametrize("first", ["owner", "borrower"])
@pytest.mark.parametrize("way", some_of("twice", "small"))
def test_memory_is_freed_in_either_order_around_a_swap(machine: Machine, way: str, first: str) -> None:
    """While one of both has let go of it, the other has it through a checkpoint, reads and writes it."""
    group = Group.start(machine, ranks=2)
    group.lends(way)
    group.swaps()
    group.ask(f"drop 0 {first}")
    group.works()
    group.swaps()
    group.ask(f"drop 0 {'owner' if first == 'borrower' else 'borrower'}")
    group.works()
    group.swaps()


def test_ranks_on_one_device_lend_in_every_way_and_are_swapped(machine: Machine) -> None:
    group = Group.start(machine, *ONE, ranks=3)
    group.lends(*WAYS)
    group.swaps()
    group.lends(*WAYS)
    group.swaps()


@pytest.mark.parametrize("way", ["asked", "queued", "small"])
def test_what_is_asked_for_while_the_job_goes_comes_when_it_is_back(machine: Machine, way: str) -> None:
    """The borrower waits in its call or at its socket, and a thread of the owner at the gate, through it all."""
    group = Group.start(machine, ranks=2)
    group.ask(f"make {way}")
    with machine.held_at("checkpoint.quiesced"):
        running = machine.command("checkpoint", NAME)
        machine.wait_held()
        group.victim.tell("take 0")
        assert group.victim.silent()
    is_away(machine, running.result(60), 2)
    assert group.victim.silent()
    group.come_back()
    group.hear("take 0")
    group.works()
    group.swaps()


def test_memory_that_is_freed_while_the_checkpoint_is_prepared_is_in_nobodys_way(machine: Machine) -> None:
    """The ranks still run then: what one of them held when it was asked may be gone when its owner is asked."""
    group = Group.start(machine, ranks=2)
    group.lends("asked")
    driver_does(machine, f"cuMemExportToShareableHandle@{group.pid(0)}:1+:delay=300")
    running = machine.command("checkpoint", NAME)
    time.sleep(0.15)  # both were asked what they hold; one still exports
    group.ask("drop 0 borrower")
    group.ask("drop 0 owner")
    is_away(machine, running.result(60), 2)
    driver_does(machine)
    group.come_back()
    group.works()


def test_ranks_that_may_have_few_descriptors_are_swapped(machine: Machine) -> None:
    """They have more memory than descriptors."""
    few = 40
    group = Group.start(machine, ranks=2, before=["sh", "-c", f'ulimit -n {few}; exec "$@"', "sh"])
    for number in range(few // 2):
        group.ask("make asked")
        group.ask(f"take {number}")
    group.swaps()


# ---- room --------------------------------------------------------------------------------------------------------


def grown_by(group: Group, way: str, swaps: bool) -> list[int]:
    """Returns how many bytes all devices count more after each act in the life of a piece."""
    rest, grown = group.machine.used(), []
    for line in (f"make {way}", "take 0", "drop 0 owner", "drop 0 borrower", f"make {way}", "take 1"):
        group.ask(line)
        if swaps:
            group.swaps()
        grown.append(group.machine.used() - rest)
    for line in ("drop 1 borrower", "drop 1 owner"):
        group.ask(line)
        grown.append(group.machine.used() - rest)
    return grown


@pytest.mark.parametrize("way", ["asked", "cached", "legacy"])
def test_memory_is_given_back_when_owner_and_borrower_have_freed_it_as_bare(machine: Machine, way: str) -> None:
    machine.extra["GCR_PREPARE_ARENA"] = "no"  # and no worker's context comes to the device meanwhile
    bare = Group.start(machine, ranks=2, bare=True)
    right = grown_by(bare, way, swaps=False)
    assert right[0] == right[1] == right[2] > 0 == right[3] == right[-1]
    assert bare.victim.supervisor.stdin
    bare.victim.supervisor.stdin.close()
    assert bare.victim.supervisor.wait(30) == 0
    group = Group.start(machine, ranks=2)
    assert grown_by(group, way, swaps=False) == right


def test_so_it_is_when_there_was_a_swap_between_all_acts(machine: Machine) -> None:
    machine.extra["GCR_PREPARE_ARENA"] = "no"
    group = Group.start(machine, ranks=2)
    group.swaps()  # what a worker leaves on the devices is there from here on
    granule = 2 * (2 << 20)  # of two ranks
    assert grown_by(group, "asked", swaps=True) == [granule, granule, granule, 0, granule, granule, granule, 0]


# ---- failures ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_fails_leaves_all_ranks_running(machine: Machine) -> None:
    """What is lent, what is mapped and what is to be lent later works as before."""
    group = Group.start(machine, ranks=3)
    group.lends("asked", "legacy")
    for step in FAULTS:
        machine.inject(f"checkpoint.{step} fail")
        with group.untouched():
            error = error_of(machine.gcr("checkpoint", NAME))
            assert (error["code"], error["state"]) == ("injected_fault", "running"), (step, error)
    group.lends("cached", "twice")
    group.swaps()


def test_a_restore_that_fails_leaves_all_ranks_suspended(machine: Machine) -> None:
    group = Group.start(machine, ranks=3)
    group.lends("twice", "legacy")
    for step in machine.where.before_it_runs():
        group.leave()
        machine.inject(f"restore.{step} fail")
        error = error_of(machine.gcr("restore", NAME))
        assert "injected" in error["message"], (step, error)
        assert group.state() == "suspended", step
        group.come_back()
        group.works()


@pytest.mark.parametrize("call", ["cuMemImportFromShareableHandle", "cuMemMap"])
def test_a_rank_that_the_driver_refuses_to_bring_back_is_brought_back_later(machine: Machine, call: str) -> None:
    """No other rank computes meanwhile: it would wait for this one on its device."""
    group = Group.start(machine, ranks=3)
    group.lends("asked")
    pid = group.pid(1)
    group.leave()
    driver_does(machine, f"{call}@{pid}:1+:fail={REFUSES}")
    error_of(machine.gcr("restore", NAME))
    assert group.state() == "suspended"
    driver_does(machine)
    group.come_back()
    group.works()


@pytest.mark.parametrize("call", ["cuMemMap", "cuMemImportFromShareableHandle"])
def test_what_cannot_be_taken_back_at_once_is_taken_back_later(machine: Machine, call: str) -> None:
    """A checkpoint fails after the memory was handed over, and a rank cannot map what it had."""
    group = Group.start(machine, ranks=3)
    group.lends("asked")
    held = machine.folder / "held"
    machine.inject(f"checkpoint.handed_over hold {held}", "checkpoint.handed_over fail")
    running = machine.command("checkpoint", NAME)
    machine.wait_held()
    driver_does(machine, f"{call}@{group.pid(1)}:1+:fail={REFUSES}")
    held.unlink()
    assert error_of(running.result(60))["code"] in ("stands_still", "injected_fault")
    driver_does(machine)
    until(lambda: machine.gcr("recover").code == 0, 20, "it is recovered, unless that goes on already")
    machine.until_state(NAME, "running")
    group.works()
    group.swaps()


# ---- ways to go and to come back ---------------------------------------------------------------------------------


def test_the_data_alone_goes_and_comes_and_contexts_may_go_later(machine: Machine) -> None:
    group = Group.start(machine, ranks=2)
    group.lends("asked", "legacy")
    for _ in range(2):
        group.swaps("--data-only")
        group.lends("cached")
    group.leave("--data-only")
    group.leave()
    group.come_back()
    group.ask("?")
    group.lends("legacy")


def test_an_image_is_written_while_they_run_and_while_they_are_away(machine: Machine) -> None:
    group = Group.start(machine, ranks=2)
    group.lends("twice", "legacy")
    store = "--wait", "durable", "--store", str(store_of(machine))
    with group.untouched():
        assert machine.gcr("checkpoint", NAME, "--image", "beside", "--leave-running", *store).code == 0
    group.leave("--image", "away", *store)
    group.come_back()
    group.works()
    group.leave("--image", "again", *store)
    back = machine.gcr("restore", "--image", "again", "--store", str(store_of(machine)))
    assert (back.code, back.body.get("state")) == (0, "running"), back.body
    group.ask("?")
    group.works()
    group.swaps()


def test_an_image_has_each_lent_byte_once(machine: Machine) -> None:
    """A borrower's mapping is no memory of its own."""
    sizes = []
    group = Group.start(machine, ranks=2)
    for name, line in (("before", "?"), ("made", "make asked"), ("lent", "take 0")):
        group.ask(line)
        sizes.append(image_bytes(machine, name))
    before, made, lent = sizes
    assert made - before == 2 * (2 << 20)
    assert lent == made


def image_bytes(machine: Machine, name: str) -> int:
    words = ("--image", name, "--leave-running", "--wait", "durable", "--store", str(store_of(machine)))
    gone = machine.gcr("checkpoint", NAME, *words)
    assert gone.code == 0, gone.body
    return int(gone.body["bytes_total"])


def test_they_come_back_on_each_others_devices(machine: Machine) -> None:
    group = Group.start(machine, ranks=2)
    group.lends("asked", "legacy")
    pids = group.pid(0), group.pid(1)
    places = devices(machine)
    first, second = (places[pid] for pid in pids)
    group.leave()
    back = group.come_back("--device", f"{first}={second}", "--device", f"{second}={first}")
    assert back.body["moved"] == {first: second, second: first}
    assert devices(machine) == {pids[0]: second, pids[1]: first}
    group.works()
    group.lends("twice")
    group.swaps()


def devices(machine: Machine) -> dict[int, str]:
    found = machine.job(NAME)
    assert found
    return {row["pid"]: row["device"] for row in found["processes"]}
