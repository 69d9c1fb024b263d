"""A migration with failures at random: the job never runs at both nodes, and in the end it runs at one.

The two nodes here keep their records as the real ones do. Each order may fail before it is done, or after it: then no
word of it comes. A coordinator may die at any time, and another one settles what it left.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from gcr.migration.coordination import Coordination
from gcr.migration.messages import Finish, Heard, Order, Outcome, Task

SEEDS = 4000


@dataclass
class World:
    """`source`: its stage, empty without a record · `arriving`: the target has a record

    at_a, at_b: `runs`, `saved` (in an image or suspended) or empty, where the job is not
    chance: tells whether the target is quicker than the end of the source's processes
    """

    source: str = ""
    arriving: bool = False
    at_a: str = "runs"
    at_b: str = ""
    chance: random.Random = field(default_factory=random.Random)
    trace: list[tuple[str, ...]] = field(default_factory=list)

    def do(self, order: Order) -> Heard:
        heard = getattr(self, f"_{order.value}")()
        self.trace.append((order.value, heard.value, self.source, str(self.arriving), self.at_a, self.at_b))
        assert (self.at_a == "runs") + (self.at_b == "runs") <= 1, self.trace
        assert self.at_a or self.at_b, self.trace
        return heard

    def _admit(self) -> Heard:
        return Heard.DONE

    def _begin(self) -> Heard:
        self.source, self.arriving = "copying", True
        return Heard.DONE

    def _copy(self) -> Heard:
        return Heard.DONE

    def _moved(self, stage: str, *before: str) -> Heard:
        if self.source not in before:
            return Heard.FAILED
        self.source = stage
        return Heard.DONE

    def _leave(self) -> Heard:
        return self._moved("leaving", "copying", "leaving")

    def _stop(self) -> Heard:
        if self.at_a != "runs" or self.source != "leaving":
            return Heard.FAILED
        self.at_a = "saved"
        if self.arriving and self.chance.random() < 0.5:  # it has awaited the image: no order is needed for that
            self.at_b = "saved"
        return Heard.DONE

    def _bring(self) -> Heard:
        if self.at_a != "saved" or not self.arriving:
            return Heard.FAILED
        self.at_b = "saved"
        return Heard.DONE

    def _hold(self) -> Heard:
        return Heard.DONE if self.at_b == "saved" else Heard.FAILED

    def _give(self) -> Heard:
        return self._moved("given", "leaving", "given")

    def _own(self) -> Heard:
        self.arriving = False
        return Heard.DONE

    def _open(self) -> Heard:
        return self._runs_at_b()

    def _reopen(self) -> Heard:
        return self._runs_at_b()

    def _runs_at_b(self) -> Heard:
        if self.arriving or not self.at_b:
            return Heard.FAILED
        self.at_b = "runs"
        return Heard.DONE

    def _forget(self) -> Heard:
        if self.source == "given":
            assert self.at_b == "runs", self.trace
            self.at_a = ""
        self.source = ""
        return Heard.DONE

    def _keep(self) -> Heard:
        if self.source == "given":
            return Heard.GIVEN
        if not self.source:
            return Heard.UNKNOWN
        self.source = "kept"
        return Heard.DONE

    def _abandon(self) -> Heard:
        if self.arriving:
            self.at_b, self.arriving = "", False
        return Heard.DONE

    def _take_back(self) -> Heard:
        assert self.source == "kept" or not self.source, self.trace
        if not self.at_a:
            return Heard.FAILED
        self.at_a, self.source = "runs", ""
        return Heard.DONE


def steps(world: World, chance: random.Random, task: Task, trouble: float) -> Iterator[Outcome | None]:
    """Takes one order at a time. Yields None after each, and the outcome at the end; it ends early where it dies."""
    if task is Task.RECOVER and not (world.source or world.arriving):
        return  # neither node has a record: there is nothing to settle
    coordination = Coordination(task, lambda: chance.random() < 0.5)
    step = coordination.start()
    while not isinstance(step, Finish):
        roll = chance.random()
        if roll < trouble / 8:
            return
        if roll < trouble / 2:
            heard = chance.choice((Heard.FAILED, Heard.LOST))
        else:
            heard = world.do(step)
            heard = Heard.LOST if roll < trouble else heard
        yield None
        step = coordination.on(heard)
    yield step.outcome


def carried_out(world: World, chance: random.Random, task: Task, trouble: float) -> Outcome | None:
    """Returns the outcome; None where the coordinator has died."""
    return next(filter(None, steps(world, chance, task, trouble)), None)


def settled(world: World) -> None:
    """A last recovery, without failures, leaves the job running at one node, and no record."""
    if world.source or world.arriving:
        assert carried_out(world, random.Random(), Task.RECOVER, 0.0) in (Outcome.DONE, Outcome.TAKEN_BACK), world
    assert (world.source, world.arriving) == ("", False), world.trace
    assert (world.at_a == "runs") != (world.at_b == "runs"), world.trace


def test_whatever_fails_the_job_runs_at_one_node_at_most_and_in_the_end_at_one():
    seen = set()
    for seed in range(SEEDS):
        chance, world = random.Random(seed), World(chance=random.Random(-seed))
        outcome = carried_out(world, chance, Task.MIGRATE, chance.choice((0.05, 0.3, 0.7)))
        seen.add(outcome)
        if outcome is Outcome.DONE:
            assert (world.at_b, world.arriving) == ("runs", False), world.trace
        if outcome in (Outcome.TAKEN_BACK, Outcome.REFUSED):
            assert world.at_a == "runs", world.trace
        for _ in range(chance.randrange(3)):  # recoveries that fail, too
            carried_out(world, chance, Task.RECOVER, 0.5)
        settled(world)
    assert seen == {None, *Outcome}


def test_a_recovery_beside_a_coordinator_that_lives_does_no_harm():
    for seed in range(SEEDS):
        chance, world = random.Random(seed), World(chance=random.Random(-seed))
        under_way = [
            steps(world, chance, Task.MIGRATE, 0.1),
            *(steps(world, chance, Task.RECOVER, 0.1) for _ in range(chance.randrange(1, 3))),
        ]
        next(under_way[0], None)
        while under_way:
            one = chance.choice(under_way)
            if next(one, Outcome.DONE) is not None:
                under_way.remove(one)
        settled(world)


def test_without_failures_it_goes_straight_there():
    world, coordination = World(), Coordination(Task.MIGRATE, iter((True, False)).__next__)
    step, orders = coordination.start(), []
    while not isinstance(step, Finish):
        orders.append(step)
        step = coordination.on(world.do(step))
    assert step == Finish(Outcome.DONE)
    names = "admit begin copy copy leave stop bring hold give own open forget"
    assert [each.value for each in orders] == names.split()


def test_a_silent_source_leaves_the_target_alone():
    coordination = Coordination()
    coordination.under_way = Order.GIVE
    step = coordination.on(Heard.LOST)
    assert step is Order.KEEP
    while not isinstance(step, Finish):
        assert step is Order.KEEP
        step = coordination.on(Heard.LOST)
    assert step == Finish(Outcome.UNSETTLED)
