"""Policies on a synthetic day: a trace of requests, and models that take a second each way."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from gcr.policy import Candidate
from gcr.serve.plan import View, plan
from gcr.serve.policies import BUILT_IN, Cost, Lru, Priority
from gcr.serve.states import State

GIB = 1 << 30


@dataclass
class Simulated:
    """Models that answer at once, and take a second each way. Counts swaps and waits over a trace."""

    policy: object
    room: int
    sizes: dict[str, int]
    priorities: dict[str, int] = field(default_factory=dict)
    state: dict[str, State] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)
    swaps: int = 0
    waits: dict[str, list[float]] = field(default_factory=dict)

    def ask(self, name: str, now: float, called: bool = False) -> None:
        """A request comes, or the model is called without one."""
        waited = 0.0
        while self.state.get(name, State.COLD) is not State.READY:
            found = plan(self._views(name, now, called), self.room, self.policy, now + waited)
            assert found.park or found.begin, "it stands still"
            for each in found.park:
                self.state[each] = State.PARKED
            for each in found.begin:
                self.state[each] = State.READY
            self.swaps += len(found.park)
            waited += 1.0
        self.used[name] = now
        if not called:
            self.uses[name] = self.uses.get(name, 0) + 1
            self.waits.setdefault(name, []).append(waited)
        there = [self.sizes[n] for n, state in self.state.items() if state is State.READY]
        assert len(there) == 1 or sum(there) <= self.room

    def _views(self, asked: str, now: float, called: bool) -> list[View]:
        return [
            View(
                state=self.state.get(name, State.COLD),
                called=called and name == asked,
                candidate=Candidate(
                    name=name,
                    bytes=size,
                    priority=self.priorities.get(name, 0),
                    waiting=int(name == asked and not called),
                    since=now if name == asked and not called else None,
                    last_used=self.used.get(name, 0.0),
                    uses=self.uses.get(name, 0),
                    wake_s=size / GIB,
                ),
            )
            for name, size in self.sizes.items()
        ]


def trace(seed: int = 3, count: int = 2000) -> list[tuple[float, str]]:
    """A day: a chat model by far the most asked, one for code in bursts, others now and then."""
    chance, now, found = random.Random(seed), 0.0, []
    while len(found) < count:
        now += chance.expovariate(1 / 20)
        name = chance.choices([*SIZES_OF_DAY], [60, 20, 8, 6, 4, 2])[0]
        found += [(now + step, name) for step in range(5 if name == "code" else 1)]
    return found


SIZES_OF_DAY = {"chat": GIB, "code": GIB, "large": 2 * GIB, "embed": GIB, "rank": GIB, "rare": GIB}


Times = Sequence[tuple[float, str]]


def a_day(
    policy: object, more: Times = (), called: Times = (), sizes: Mapping[str, int] = SIZES_OF_DAY, **other: object
) -> Simulated:
    """The trace, `more` requests, and models that are called without one."""
    day = Simulated(policy, 4 * GIB, dict(sizes), **other)
    events = [(now, name, False) for now, name in (*trace(), *more)] + [(now, name, True) for now, name in called]
    for now, name, without in sorted(events):
        day.ask(name, now, without)
    return day


@pytest.mark.parametrize("policy", BUILT_IN, ids=lambda each: each.name)
def test_on_a_day_every_request_is_answered_and_most_without_a_swap(policy):
    day = a_day(policy)
    assert sum(map(len, day.waits.values())) == len(trace())
    assert day.swaps < len(trace()) / 2


@pytest.mark.parametrize("policy", BUILT_IN, ids=lambda each: each.name)
def test_on_a_day_a_model_that_needs_more_than_there_is_is_answered_as_well(policy):
    day = a_day(policy, sizes={**SIZES_OF_DAY, "large": 5 * GIB})
    assert sum(map(len, day.waits.values())) == len(trace())


class Worst(Lru):
    """Parks what is asked for most."""

    def leaves(self, candidates: Sequence[Candidate], demand: Candidate, now: float) -> Sequence[str]:
        return [each.name for each in sorted(candidates, key=lambda each: -each.uses)]


def test_on_a_day_lru_and_cost_swap_less_than_the_worst_choice():
    worst = a_day(Worst()).swaps
    assert a_day(Lru()).swaps < 0.8 * worst
    assert a_day(Cost()).swaps < 0.8 * worst


def test_on_a_day_a_high_priority_waits_less_than_by_lru():
    wait = [sum(a_day(policy, priorities={"rare": 9}).waits["rare"]) for policy in (Lru(), Priority())]
    assert wait[1] < 0.5 * wait[0]
