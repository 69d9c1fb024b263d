"""kill -9 in a job of ranks that lend each other memory: of a rank, or of a process of gcr's, at any step.

Memory that others hold of a rank outlives it, on the device and off it: the others run on as bare, and are refused from
then on. Nothing hangs. The death of a process of gcr's costs nothing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
from machine import Machine, kill, until
from p2p import NAME, Group, pids
from refusals import refused
from stored import back, store_of
from worlds import SLOW

LONGEST = 20.0  # seconds for any answer
RANKS = 3
STEPS = {
    "checkpoint": ("prepared", "quiesced", "handed_over", "locked", "frozen", "drained", "staged", "decided"),
    "restore": ("room", "refilled", "back", "mapped", "decided"),
}
OURS = ("gcr.daemon", "gcr.worker", "gcr.control_helper", "supervisor")
MOST_DANGEROUS = ("checkpoint.handed_over", "checkpoint.drained", "restore.refilled", "restore.mapped")


def steps() -> Iterator[str]:
    return (f"{command}.{step}" for command, several in STEPS.items() for step in several)


def soon(step: str, of: str, *most: str) -> object:
    """A parameter that is for the slow tests, unless most is at stake there."""
    return pytest.param(step, of, marks=[] if step in most else [SLOW])


@pytest.fixture
def group(machine: Machine) -> Group:
    made = Group.start(machine, ranks=RANKS)
    made.lends("asked", "legacy")
    return made


def strike(group: Group, step: str, who: Callable[[], list[int]]) -> None:
    """Kills processes while a command stands at the step; the command ends soon."""
    with group.machine.held_at(step):
        running = group.machine.command(step.partition(".")[0])
        group.machine.wait_held()
        kill(*who())
    running.result(LONGEST)


def found(group: Group, who: str) -> list[int]:
    pids = [group.victim.supervisor.pid] if who == "supervisor" else group.machine.children(who)
    assert pids, f"there is no {who}"
    return pids


def survivors_are_right(group: Group, dead: int) -> None:
    """Each still reaches all memory, that of the dead rank as well."""
    said, right = group.victim.ask("?").split(), group.model.answer("?").split()
    right[dead] = "gone"
    assert said == right


def run_on(group: Group, dead: int) -> None:
    """The others have what they had, and are refused, before anything is touched."""
    survivors_are_right(group, dead)
    for _ in range(2):
        message = refused(group.machine.gcr("checkpoint", NAME, timeout=LONGEST), "unsupported_state")
        assert "has ended" in message
        assert group.state() == "running"
    survivors_are_right(group, dead)


def come_back(group: Group, dead: int) -> None:
    """The others come back from where they are, and run on."""
    if group.machine.settled() != "running":
        group.come_back()
    run_on(group, dead)


# ---- ranks -------------------------------------------------------------------------------------------------------


def test_a_rank_that_dies_while_others_wait_for_it_on_their_devices(machine: Machine) -> None:
    """As bare they wait for ever. The answer comes soon."""
    group = Group.start(machine, ranks=RANKS)
    group.victim.tell("rounds")
    group.victim.tell("rounds")
    kill(group.pid(1))
    began = time.monotonic()
    refused(machine.gcr("checkpoint", NAME, timeout=LONGEST), "unsupported_state")
    assert time.monotonic() - began < LONGEST
    assert group.state() == "running"


@pytest.mark.parametrize("dead", range(RANKS))
def test_a_rank_that_dies_while_it_runs(group: Group, dead: int) -> None:
    kill(group.pid(dead))
    run_on(group, dead)


@pytest.mark.parametrize("dead", range(RANKS))
@pytest.mark.parametrize("options", [(), ("--data-only",)], ids=["whole", "data only"])
def test_a_rank_that_dies_while_suspended(group: Group, dead: int, options: Sequence[str]) -> None:
    group.leave(*options)
    kill(group.pid(dead))
    until(lambda: dead not in pids(group.machine) or None, 10, "it is gone")
    come_back(group, dead)


@pytest.mark.parametrize("who", OURS)
def test_a_rank_that_dies_while_suspended_and_then_a_process_of_gcrs(group: Group, who: str) -> None:
    group.leave()
    kill(group.pid(1))
    until(lambda: 1 not in pids(group.machine) or None, 10, "it is gone")
    group.machine.settled()
    kill(*found(group, who))
    come_back(group, 1)


@pytest.mark.parametrize("dead", [0, 2])
def test_a_rank_that_dies_while_suspended_comes_back_from_an_image(group: Group, dead: int) -> None:
    store = "--store", str(store_of(group.machine))
    group.leave("--image", "night", "--wait", "durable", *store)
    kill(group.pid(dead))
    until(lambda: dead not in pids(group.machine) or None, 10, "it is gone")
    assert back(group.machine, "night").get("ok")
    run_on(group, dead)


@pytest.mark.parametrize(
    ("step", "dead"),
    [soon(step, str(dead), *MOST_DANGEROUS[dead::2]) for step in steps() for dead in range(RANKS)],
)
def test_a_rank_that_dies_in_a_command(group: Group, step: str, dead: str) -> None:
    if step.startswith("restore"):
        group.leave()
    strike(group, step, lambda: [group.pid(int(dead))])
    come_back(group, int(dead))


# ---- gcr's own ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "who"), [soon(step, who, *MOST_DANGEROUS) for step in steps() for who in OURS])
def test_no_death_of_a_process_of_gcrs_costs_a_byte(group: Group, step: str, who: str) -> None:
    if step.startswith("restore"):
        group.leave()
    strike(group, step, partial(found, group, who))
    if group.machine.settled() != "running":
        group.come_back()
    group.works()
    group.swaps()
    group.lends("twice")
