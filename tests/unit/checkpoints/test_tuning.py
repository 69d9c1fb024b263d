"""The choice of threads, chunk size, saves in flight and interval, for any disk, state and step."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gcr.checkpoints.tuning import AS_FAST, HEADROOM, Load, Rates, best, chosen
from gcr.errors import NoRoom
from gcr.hashing.chunks import CHUNK_BYTES

MIB, GIB = 1 << 20, 1 << 30
rates = st.builds(
    Rates,
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([CHUNK_BYTES, MIB, 4 * MIB]),
    st.lists(st.floats(1e7, 1e10), min_size=1, max_size=5),
)
ways = st.lists(rates, min_size=1, max_size=12, unique_by=lambda each: (each.threads, each.chunk_bytes))
loads = st.builds(
    Load,
    save_bytes=st.integers(1, 64 * GIB),
    step_s=st.floats(1e-3, 100),
    blocked_s=st.floats(0, 60),
    slowdown=st.floats(0.001, 0.9),
    host_bytes=st.integers(64 * GIB, 4096 * GIB),
)


@given(ways, loads)
def test_the_choice_keeps_the_bound_the_disk_and_host_memory(measured: list[Rates], load: Load) -> None:
    choice = chosen(measured, load)
    interval_s = choice.every * load.step_s
    rounding = 1 + 1e-9
    assert load.blocked_s <= load.slowdown * interval_s * rounding
    assert choice.write_s * HEADROOM <= interval_s * rounding
    assert choice.slow_s <= choice.in_flight * interval_s * rounding, "the slowest save holds up none"
    assert choice.in_flight * load.save_bytes <= load.host_bytes
    assert choice.in_flight == 1 or choice.slow_s > (choice.in_flight - 1) * interval_s, "more than pay"


@given(ways, loads)
def test_no_shorter_interval_would_do(measured: list[Rates], load: Load) -> None:
    choice = chosen(measured, load)
    shorter_s = (choice.every - 1) * load.step_s * (1 - 1e-9)
    most = load.host_bytes // load.save_bytes
    broken = {
        "step": choice.every == 1,
        "blocked": load.blocked_s > load.slowdown * shorter_s,
        "disk": choice.write_s * HEADROOM > shorter_s,
        "memory": choice.slow_s > most * shorter_s,
    }
    assert broken[choice.bound]


@given(ways, loads, st.floats(1, 100))
def test_a_faster_disk_takes_no_fewer_saves(measured: list[Rates], load: Load, times: float) -> None:
    faster = [replace(each, bytes_per_s=[rate * times for rate in each.bytes_per_s]) for each in measured]
    assert chosen(faster, load).every <= chosen(measured, load).every


@given(ways)
def test_the_way_is_about_the_fastest_and_the_easiest_for_the_training(measured: list[Rates]) -> None:
    way = best(measured)
    least = AS_FAST * max(max(each.bytes_per_s) for each in measured)
    near = [each for each in measured if max(each.bytes_per_s) >= least]
    assert way in near
    assert way.threads == min(each.threads for each in near)
    assert way.chunk_bytes == CHUNK_BYTES or CHUNK_BYTES not in [
        each.chunk_bytes for each in near if each.threads == way.threads
    ]


def test_an_example() -> None:
    """16 GiB at 1 GiB/s take 16 s, 34 steps with some room; one trial of ten was at a third of that."""
    disk = [Rates(4, CHUNK_BYTES, [GIB] * 9 + [GIB / 3]), Rates(8, CHUNK_BYTES, [GIB * 1.02]), Rates(1, MIB, [GIB / 2])]
    load = Load(16 * GIB, step_s=0.5, blocked_s=0.03, slowdown=0.03, host_bytes=100 * GIB)
    choice = chosen(disk, load)
    assert (choice.threads, choice.chunk_bytes, choice.every, choice.bound) == (4, CHUNK_BYTES, 34, "disk")
    assert (choice.in_flight, round(choice.slow_s)) == (3, 48)
    slow = chosen(disk, replace(load, blocked_s=1.5))
    assert (slow.every, slow.bound, slow.in_flight) == (100, "blocked", 1)
    short = chosen(disk, replace(load, host_bytes=16 * GIB))
    assert (short.every, short.bound, short.in_flight) == (ceil(48.03 / 0.5), "memory", 1)
    assert chosen(disk, replace(load, step_s=60)).bound == "step"
    copied = chosen([Rates(1, MIB, [GIB])], replace(load, blocked_s=1.5, slowdown=0.5))
    assert (copied.every, copied.in_flight) == (34, 2), "the next save is copied while the last one is written"


def test_a_state_that_host_memory_does_not_hold_is_refused() -> None:
    load = Load(2 * GIB, step_s=0.5, blocked_s=0, slowdown=0.03, host_bytes=GIB)
    with pytest.raises(NoRoom) as refused:
        chosen([Rates(1, MIB, [GIB])], load)
    assert refused.value.missing == GIB
