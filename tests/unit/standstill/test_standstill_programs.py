"""The decision over a model of ranks: it comes to a standstill, and admits only what brings ranks together.

`ranks` checks each admission against the calls that the enqueued ones need, which it knows from the programs.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from programs import SHAPES, random_program
from ranks import Call, Job, stand_still

from gcr.engine.standstill import Done

SEEDS = st.integers(0, 1 << 48)


def stopped(seed: int, names: bool = True, steps: int = 10, collide: bool = False) -> Job:
    """A random program, stopped somewhere."""
    rng = Random(seed)
    threads = random_program(rng, steps)
    for call in (item for thread in threads for item in thread.program if isinstance(item, Call)):
        call.signature = min(call.signature, 1) if collide else call.signature
    job = Job(threads, names)
    job.exact = names and not collide
    job.run_free(rng, rng.randrange(3 * steps))
    assert stand_still(job) == Done()
    return job


@settings(max_examples=2000)
@given(SEEDS)
def test_random_programs_come_to_a_standstill_and_nothing_is_admitted_outside_the_closure(seed):
    stopped(seed)


@settings(max_examples=200)
@given(SEEDS, st.booleans())
def test_they_do_so_without_signatures_and_with_those_that_mean_several_communicators(seed, names):
    stopped(seed, names, collide=names)


def test_the_programs_need_admissions_of_each_kind():
    """Guards the tests above: most standstills would come by themselves otherwise."""
    jobs = [stopped(seed) for seed in range(150)]
    assert sum(job.admitted_coupled > 0 for job in jobs) > 30
    assert sum(job.admitted > job.admitted_coupled for job in jobs) > 30


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_random_programs():
    for seed in range(100_000):
        stopped(seed, steps=8 + seed % 12)


def came(seeds: Sequence[int], names: bool) -> dict[str, list[bool]]:
    """By shape and whether it waits for its work each step: which of these instants led to a standstill."""
    found: dict[str, list[bool]] = {}
    for shape in SHAPES:
        for synced in (True, False):
            found[f"{shape.__name__}, {synced}"] = [_comes(shape, synced, names, Random(seed)) for seed in seeds]
    return found


def _comes(shape, synced: bool, names: bool, rng: Random) -> bool:
    n, skew = rng.choice((2, 4, 8)), rng.choice((0.0002, 0.003, 0.06))
    job = Job(shape(rng, n, 12, synced, skew), names)
    job.run_free(rng, rng.randrange(n * 400))
    return stand_still(job, deadline=20.0) == Done()


def test_six_shapes_of_programs_come_to_a_standstill():
    share = came(range(6), names=True)
    assert {name: all(ways) for name, ways in share.items()} == dict.fromkeys(share, True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_they_do_so_at_five_thousand_instants():
    share = came(range(420), names=True)
    every = [way for ways in share.values() for way in ways]
    assert len(every) > 5000
    assert sum(every) / len(every) >= 0.995, {name: sum(ways) / len(ways) for name, ways in share.items()}
