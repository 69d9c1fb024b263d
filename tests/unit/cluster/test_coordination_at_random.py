"""The coordinator's decisions in any order of events and with any failures: in the end no mix of states is left."""

import random

import pytest
from decided import TO_KEEP, TO_RUN_ON, TO_STOP, is_mix, recovered
from nodes_that_obey import Node, World

from gcr.cluster.coordination import Aim, Task
from gcr.cluster.messages import (
    Outcome,
    Place,
)


@pytest.mark.parametrize("task", [Task.CHECKPOINT, Task.RESTORE])
@pytest.mark.parametrize("faults", [0.0, 0.05, 0.5, 1.0])
def test_no_mix_is_left_in_whichever_order_things_happen_and_fail(task: Task, faults: float):
    outcomes, led = set(), 0
    for seed in range(400):
        chance = random.Random(f"{task} {faults} {seed}")
        suspended = task is Task.RESTORE
        nodes = [Node(str(n), suspended, "x" if suspended else "") for n in range(chance.randint(1, 6))]
        for node in nodes:
            node.behind = chance.choice((0, 0, 0, 3))
        if faults == 1.0:
            chance.choice(nodes).cannot_restore = chance.random() < 0.5
        world = World.of(chance, task, nodes, faults)
        outcome = world.run()
        outcomes.add(outcome)
        led += world.coordination.together.orders > 0
        if outcome is not Outcome.UNSETTLED:
            assert not is_mix(world), (seed, world)
            at_goal = all(node.suspended is (task is Task.CHECKPOINT) for node in nodes)
            assert at_goal is (outcome is Outcome.DONE), (seed, outcome, world)
        assert not is_mix(recovered(world)), (seed, world)
    assert outcomes == ({Outcome.DONE} if faults == 0.0 else {*Outcome})
    assert (led >= 10) is (task is Task.CHECKPOINT), led


@pytest.mark.parametrize("aim", [TO_STOP, TO_RUN_ON, TO_KEEP], ids=["stop", "run on", "suspend"])
@pytest.mark.parametrize("task", [Task.CHECKPOINT, Task.RESTORE])
@pytest.mark.parametrize("faults", [0.0, 0.05, 0.5, 1.0])
def test_no_mix_is_left_of_an_image_in_whichever_order_things_happen_and_fail(task: Task, faults: float, aim: Aim):
    outcomes = set()
    for seed in range(200):
        chance = random.Random(f"image {task} {aim.place} {faults} {seed}")
        away = task is Task.RESTORE
        nodes = [
            Node(str(n), away, "x" * away, stopped=away and chance.random() < 0.8) for n in range(chance.randint(1, 6))
        ]
        if faults == 1.0:
            chance.choice(nodes).cannot_restore = chance.random() < 0.5
        world = World.of(chance, task, nodes, faults, aim)
        outcome = world.run()
        outcomes.add(outcome)
        if outcome is not Outcome.UNSETTLED:
            assert not is_mix(world), (seed, world)
        if outcome is Outcome.DONE:
            there = task is Task.CHECKPOINT and aim.place is not Place.RUNNING
            assert {node.suspended for node in nodes} == {there}, (seed, world)
            assert away or all(node.kept for node in nodes), (seed, world)
        assert not is_mix(recovered(world)), (seed, world)
    assert outcomes == {Outcome.DONE} if faults == 0.0 else {Outcome.DONE, Outcome.TAKEN_BACK} <= outcomes


@pytest.mark.parametrize("aim", [TO_STOP, TO_RUN_ON], ids=["stop", "run on"])
def test_a_coordinator_that_dies_at_any_instant_of_an_image_is_replaced(aim: Aim):
    for seed in range(400):
        chance = random.Random(f"death image {aim.place} {seed}")
        world = World.of(chance, Task.CHECKPOINT, [Node(str(n)) for n in range(4)], 0.1, aim)
        world.obey(world.coordination.start())
        for _ in range(chance.randrange(90)):
            if not world.outcome:
                world.step()
        assert not is_mix(recovered(world)), (seed, world)


@pytest.mark.parametrize("task", [Task.CHECKPOINT, Task.RESTORE])
def test_a_coordinator_that_dies_at_any_instant_is_replaced(task: Task):
    for seed in range(400):
        chance = random.Random(f"death {task} {seed}")
        suspended = task is Task.RESTORE
        world = World.of(chance, task, [Node(str(n), suspended, "x" if suspended else "") for n in range(4)], 0.1)
        world.obey(world.coordination.start())
        for _ in range(chance.randrange(60)):
            if not world.outcome:
                world.step()
        assert not is_mix(recovered(world)), (seed, world)
