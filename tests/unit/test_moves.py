"""The pairs of devices, old and new, for a user's request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.backend import Device
from gcr.errors import WrongDevice
from gcr.job.moves import moved, moves_of

A, B, C, D = UUIDS = tuple(f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(4))
PRESENT = [Device(uuid, "NVIDIA H200", 1 << 37, 0) for uuid in UUIDS]


@pytest.mark.parametrize(
    ("asked", "used", "moves"),
    [
        ({}, {A}, {}),
        ({"0": "0"}, {A}, {}),
        ({"0": "1"}, {A}, {A: B, B: A}),  # a displaced device takes the place that became free
        ({A: "1", "1": A}, {A, B}, {A: B, B: A}),
        ({A.removeprefix("GPU-"): B.upper().replace("GPU-", "GPU-")}, {A}, {A: B, B: A}),
        ({"0": "1", "1": "2"}, {A, B}, {A: B, B: C, C: A}),
        ({"0": "1", "2": "3"}, {A, C}, {A: B, B: A, C: D, D: C}),
        ({"0": "1", "1": "1"}, {A, B}, None),
        ({"0": "2", "1": "2"}, {A, B}, None),
        ({"0": "1", A: "2"}, {A}, None),
        ({"0": "1"}, {A, B}, None),  # the job's two devices would meet
        ({"0": "1"}, {B}, None),
        ({"0": "4"}, {A}, None),
        ({"-1": "0"}, {A}, None),
        ({"00": "1"}, {A}, None),
    ],
)
def test_what_is_asked_and_what_comes_of_it(asked, used, moves):
    if moves is None:
        with pytest.raises(WrongDevice) as refused:
            moves_of(asked, PRESENT, used)
        assert refused.value.hint
    else:
        assert moves_of(asked, PRESENT, used) == moves


@given(st.permutations(range(4)), st.sets(st.integers(0, 3), min_size=1))
def test_every_device_is_named_once_and_the_job_s_go_where_they_should(order, used):
    wanted = {str(old): UUIDS[order[old]] for old in used}
    moves = moves_of(wanted, PRESENT, {UUIDS[old] for old in used})
    assert sorted(moves) == sorted(moves.values())
    assert all(moves.get(UUIDS[int(old)], UUIDS[int(old)]) == new for old, new in wanted.items())
    assert moved({UUIDS[old]: old for old in used}, moves) == {UUIDS[order[old]]: old for old in used}
