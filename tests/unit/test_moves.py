"""The pairs of devices, old and new, for a user's request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.backend import Device
from gcr.errors import WrongDevice
from gcr.job.moves import moved, moves_of, places_of
from gcr.job.placement import Placement

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


H200, H100 = "NVIDIA H200", "NVIDIA H100"


@pytest.mark.parametrize(
    ("before", "places"),
    [
        ([], {}),
        ([(UUIDS[1], H200), (UUIDS[0], H200)], {}),
        ([("GPU-x", H200)], {"GPU-x": UUIDS[0]}),
        ([("GPU-x", H200), (UUIDS[0], H200)], {"GPU-x": UUIDS[1], UUIDS[0]: UUIDS[0]}),
    ],
    ids=["not known", "this machine", "another", "one was replaced"],
)
def test_devices_here_take_the_places_of_another_machines(before, places):
    assert places_of(before, PRESENT) == places


def test_each_place_is_taken_by_a_device_of_its_model():
    present = [Device("a", H100, 1, 0), Device("b", H200, 1, 0)]
    assert places_of([("x", H200), ("y", H100)], present) == {"x": "b", "y": "a"}
    for before in ([("x", H200), ("y", H200)], [("x", "NVIDIA B200")], [("x", H100), ("y", H200), ("z", H200)]):
        with pytest.raises(WrongDevice, match="nothing here can take its place"):
            places_of(before, present)


def test_the_driver_hears_of_each_device_once_here_and_of_the_machines_that_was_left():
    assert Placement().pairs({"a": "b", "b": "a"}, ["a", "b", "c"]) == {"a": "b", "b": "a", "c": "c"}
    assert Placement(now={"a": "b", "b": "a"}).pairs({}, ["a", "b"]) == {"b": "a", "a": "b"}
    assert Placement().pairs({"x": "a", "y": "b"}, ["a", "b", "c"]) == {"x": "a", "y": "b"}
    onto = {"x": "b", "y": "a"}
    assert Placement(now={"x": "a", "y": "b"}).pairs(onto, ["a", "b", "c"]) == {"a": "b", "b": "a", "c": "c"}
