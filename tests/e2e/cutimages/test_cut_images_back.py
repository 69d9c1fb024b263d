"""A job on several nodes comes back from its image on all of them, or on none."""

import random
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cut_images import FEW, names_of, settled
from cut_nodes import JOB, RANKS, STEADY, Nodes, Watched, is_taken
from machine import PATIENCE, Machine, alive, kill, until
from worlds import SLOW, slowly

from gcr.cluster.calls import Result

MANY = 4
TRIES = 5


# ---- the way back ---------------------------------------------------------------------------------------------------


def test_new_processes_wait_at_ready_and_end_where_the_cut_is_given_up(nodes: Nodes, odd: Machine):
    assert nodes.image().error is None
    first, links = nodes.machines[0], nodes.links()
    with waiting_at_ready(nodes, odd, links) as (row, bringing):
        assert (row["state"], row["cut"]["barrier"]) == ("restoring", "ready")
        pids = [each["pid"] for each in row["processes"]]
        assert all(alive(pid) for pid in pids)
        with first.connected() as client:
            client.request("cut", {"id": row["cut"]["id"]})
        until(lambda: first.job(JOB) is None, 30, "its processes have ended")
        until(lambda: None in links[odd.folder.name].said, 30, "the coordinator has heard of it")
        (odd.folder / "held").unlink()
        back = bringing.result(60)
    assert back.report.outcome in ("refused", "taken_back"), back
    assert nodes.states() == ["stopped"] * FEW
    assert not any(alive(pid) for pid in pids)


@contextmanager
def waiting_at_ready(
    nodes: Nodes, odd: Machine, links: Mapping[str, Watched]
) -> Iterator[tuple[dict[str, Any], Future[Result]]]:
    """Yields what the first node says of its part, while the odd one is held. Another program may have taken a pid."""
    held, said = odd.folder / "held", links[odd.folder.name].said
    for _ in range(TRIES):
        said.clear()
        with odd.held_at("restore.ready"), ThreadPoolExecutor(1) as pool:
            bringing = pool.submit(nodes.restore_image, links=links)
            until(lambda now=bringing: held.exists() or now.done(), PATIENCE, "the odd one comes to the step, or fails")
            until(lambda now=bringing: waiting(nodes.machines[0]) or None in said or now.done(), PATIENCE, "it waits")
            if row := waiting(nodes.machines[0]):
                yield row, bringing
                return
            held.unlink(missing_ok=True)
            back = bringing.result(60)
            assert is_taken(back), back
    pytest.fail("a pid was taken each time")


def waiting(machine: Machine) -> dict[str, Any] | None:
    row = machine.job(JOB)
    return row if row and row["cut"] and row["cut"]["barrier"] else None


@pytest.mark.parametrize("step", ["ready", slowly("back"), slowly("room")])
def test_a_restore_that_fails_on_one_node_leaves_all_stopped(nodes: Nodes, odd: Machine, step: str):
    done = nodes.image()
    assert done.error is None, done
    odd.inject(f"restore.{step} fail")
    back = nodes.restore_image()
    assert back.error
    assert (back.error.code, back.report.outcome) == ("cut_failed", "taken_back"), back
    assert nodes.states() == ["stopped"] * FEW


@pytest.mark.parametrize("step", [slowly("ready"), slowly("went_ready")])
def test_a_coordinator_that_is_killed_in_a_restore_leaves_no_mix(nodes: Nodes, odd: Machine, step: str):
    assert nodes.image().error is None
    with odd.held_at(f"restore.{step}"):
        command = odd.begin("cluster", "restore", "--image", "night", *nodes.options())
        odd.wait_held()
        kill(command.pid)
        time.sleep(0.1)
        (odd.folder / "held").unlink()
    settled(nodes)


@pytest.mark.parametrize("step", [slowly("ready"), slowly("went_ready")])
def test_a_daemon_that_dies_in_a_restore_leaves_no_mix(nodes: Nodes, odd: Machine, step: str):
    assert nodes.image().error is None
    odd.inject(f"restore.{step} die")
    nodes.restore_image()
    settled(nodes)


@SLOW
def test_a_recovery_brings_stopped_parts_back_beside_one_that_runs(nodes: Nodes, odd: Machine):
    assert nodes.image().error is None
    alone = odd.ask("restore", JOB, image=names_of(odd)[0], revive=True)
    assert alone.code == 0, alone.body
    done = nodes.recover()
    assert (done.error, done.report.outcome) == (None, "done"), done
    assert nodes.states() == ["running"] * FEW
    nodes.are_right()


# ---- random instants ------------------------------------------------------------------------------------------------


def steps_of(nodes: Nodes) -> list[int]:
    """Returns the step of every rank; each has read in all of them what it wrote."""
    return [int(word) for part in nodes.parts for word in part.ask().split()]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", [slowly(3), slowly(10)])
def test_images_at_random_instants_and_deaths_leave_no_mix(tmp_path: Path, rounds: int, criu: None):
    """In turns an image and the way back, over four nodes; a coordinator, a helper or a daemon is killed meanwhile."""
    nodes, chance = Nodes.below(tmp_path, MANY, "many"), random.Random(rounds)
    try:
        nodes.begin_filed(STEADY, str(RANKS))
        for number in range(rounds):
            before = steps_of(nodes)
            machine = chance.choice(nodes.machines)
            command = machine.begin("cluster", "checkpoint", JOB, "--image", "night", "--stop", *nodes.options())
            time.sleep(chance.uniform(0.2, 4.0))
            victim = chance.choice(["coordinator", "gcr.image_helper", "gcr.criu_helper", "nothing", "gcr.daemon"])
            victims = [command.pid] if victim == "coordinator" else machine.children(victim)[:1]
            if victim != "nothing":
                kill(*victims)
            command.wait(90)
            nodes.states()
            done = nodes.recover()
            assert done.error is None, (number, victim, done)
            states = {*nodes.states()}
            assert states in ({"running"}, {"stopped"}, {"suspended"}, {"stopped", "suspended"}), (number, victim)
            if "stopped" in states:
                nodes.come_back()
            elif "suspended" in states:
                assert nodes.restore().error is None
            until(lambda b=before: all(x > y for x, y in zip(steps_of(nodes), b, strict=True)), 30, "all run on")
    finally:
        nodes.close()
