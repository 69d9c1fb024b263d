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

from coordinating import stand_still
from programs import SHAPES, random_program, threads
from ranks import Call, Group, Job

from gcr.standstill.decision import Done

SEEDS = st.integers(0, 1 << 48)


def stopped(seed: int, names: bool = True, steps: int = 10, collide: bool = False) -> Job:
    """A random program, stopped somewhere."""
    rng = Random(seed)
    program = random_program(rng, steps)
    for call in (item for thread in program for item in thread.program if isinstance(item, Call)):
        call.signature = min(call.signature, 1) if collide else call.signature
    job = Job(program, names)
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
    assert sum(job.admitted_in_batches > 0 for job in jobs) > 30
    assert sum(job.admitted_in_batches > 0 for job in jobs) > 30


def handed_from_thread_to_thread() -> Job:
    """Rank 0 is one meeting with rank 1 ahead. Rank 1's other thread makes the missing part, after a while.

    The thread that made the first part meets rank 2 meanwhile, as often as it may.
    """
    lines: dict = {(0, 0): [], (1, 0): [], (1, 1): [("host", 0.05)], (2, 0): []}
    for makers in ([(0, 0), (1, 0)], [(0, 0), (1, 1)], *[[(1, 0), (2, 0)]] * 8):
        stream, name = ("main", 1) if (0, 0) in makers else ("side", 2)
        calls = Group(Call(stream, 0.0001, name, "coupled") for _ in makers)
        for key, call in zip(makers, calls, strict=True):
            call.group = calls
            lines[key].append(call)
    job = Job(threads(lines))
    for thread in (0, 0, 1):
        job.step(job.threads[thread])
    return job


def test_a_signature_that_goes_from_thread_to_thread_may_lead_a_thread_too_far():
    """The counterexample: which thread makes the next call is a guess. LEAD alone goes by it; all stand in the end."""
    with pytest.raises(AssertionError, match="nothing enqueued needs"):
        stand_still(handed_from_thread_to_thread())
    job = handed_from_thread_to_thread()
    job.exact = False
    assert stand_still(job) == Done()


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
