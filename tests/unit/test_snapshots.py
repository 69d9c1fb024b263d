"""Snapshots on the device: their room, what they cost a program that needs it, and their end."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from host_device import ABOUT, LONG, Device, baseline, fails, holding, image, look, process
from hypothesis import given
from hypothesis import strategies as st

from gcr.drain import DeviceMemory, DeviceRange, HandleSpec, Span
from gcr.errors import NoRoom, RolledBack, WrongState
from gcr.hashing import CHUNK_BYTES
from gcr.imageerrors import ImageFailed
from gcr.worker.hostcopy import HostCopy
from gcr.worker.snapshot import portions, room_for, spare_bytes
from gcr.worker.taking import copy_on, copy_out, give_up_snapshot, make_room


@given(st.lists(st.integers(1, 300).map(lambda n: n << 21), min_size=1), st.integers(-(1 << 31), 1 << 40))
def test_room_is_of_whole_granules_and_no_more_than_there_is_to_spare(sizes: list[int], spare: int) -> None:
    made = sum(each.size for each in room_for(sizes, spare))
    assert made % (1 << 21) == 0
    assert 0 <= made <= min(sum(sizes), max(spare, 0))
    assert made >= min(sum(sizes), spare) - (1 << 30)


def test_a_share_of_the_device_stays_free() -> None:
    assert spare_bytes(DeviceMemory(used=100, total=1600, by_pid={})) == 1400
    assert spare_bytes(DeviceMemory(used=1550, total=1600, by_pid={})) < 0


@given(st.lists(st.integers(1, 50)), st.integers(1, 40))
def test_portions_are_the_same_copies(sizes: list[int], limit: int) -> None:
    spans = [Span(1000 * number, 7000 * number, size) for number, size in enumerate(sizes)]
    bytes_of = [(s.device + i, s.host + i) for s in spans for i in range(s.size)]
    cut = list(portions(spans, limit))
    assert [(s.device + i, s.host + i) for part in cut for s in part for i in range(s.size)] == bytes_of
    assert [sum(s.size for s in part) for part in cut[:-1]] == [limit] * (len(cut) - 1)
    assert all(0 < sum(s.size for s in part) <= limit for part in cut[-1:])


class Still(Device):
    """It copies nothing within itself."""

    move = None  # type: ignore[assignment]


@pytest.mark.parametrize("error", [NoRoom("full", missing=1), None])
def test_without_a_snapshot_it_is_copied_while_it_stands(error: NoRoom | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process took the room, or the drain moves nothing."""
    device = Still(spare=1 << 20) if error is None else Device(spare=1 << 20)
    device.put(1, random.Random(1).randbytes(CHUNK_BYTES))
    if error:
        monkeypatch.setattr(Device, "create", fails(error))
    with holding(device) as made:
        assert make_room(made, LONG) == 0
        assert copy_out(made, LONG, lambda _: None).snapshot == 0
        assert copy_on(made, LONG, lambda _: None).bytes == 0
        assert image(made, {}) == {1: device.holds(1)}


@contextmanager
def snapshotted(spare: int = 1 << 20) -> Iterator[tuple[Device, HostCopy]]:
    """Yields a copy with a snapshot at the cut, not read yet."""
    device = Device(spare=spare)
    device.put(1, random.Random(1).randbytes(4 * CHUNK_BYTES))
    with holding(device) as made:
        assert make_room(made, LONG) == 4 * CHUNK_BYTES
        assert copy_out(made, LONG, lambda _: None).snapshot == 4 * CHUNK_BYTES
        yield device, made


def test_room_that_another_needs_is_given_back_before_the_cut_at_no_cost() -> None:
    device = Device(spare=1 << 20)
    device.put(1, random.Random(1).randbytes(CHUNK_BYTES))
    with process(device) as held:
        made = held.copy(9)
        look(made, device)
        assert make_room(made, LONG) == held.device_bytes - CHUNK_BYTES == CHUNK_BYTES
        began = time.monotonic()
        give_up_snapshot(made, began + LONG)
        assert time.monotonic() - began < LONG / 2
        assert (device.room, held.device_bytes) == ({}, CHUNK_BYTES)
        assert copy_out(made, LONG, lambda _: None).snapshot == 0
        assert image(made, {}) == {1: device.holds(1)}


def test_a_snapshot_that_is_not_read_in_time_is_lost_and_said_to_be() -> None:
    with snapshotted() as (device, made):
        give_up_snapshot(made, time.monotonic() + 0.05)
        assert device.room == {}
        with pytest.raises(ImageFailed, match="needed the room"):
            copy_on(made, LONG, lambda _: None)
        assert device.moved == 0, "it read what was given back"
        made.give_up()
        next_one = HostCopy(made.memory, made.arena, made.device)
        assert copy_out(next_one, LONG, lambda _: None).snapshot == 0
        assert copy_on(next_one, LONG, lambda _: None).bytes == 0, "the next one is lost as well"


def test_no_restore_takes_a_copy_that_is_on_the_device_still() -> None:
    with snapshotted() as (_, made), pytest.raises(WrongState, match="on the device"):
        made.seal(ABOUT)


def test_room_that_comes_too_late_is_nobodys() -> None:
    device = Device(spare=1 << 20)
    device.put(1, bytes(CHUNK_BYTES))
    with holding(device) as made:
        assert make_room(made, -1.0) == 0
        assert device.room == {}


def test_a_snapshot_that_is_being_read_is_waited_for() -> None:
    with snapshotted() as (device, made):
        now, device.slowly = {1: device.holds(1)}, 0.3
        asker = threading.Thread(target=give_up_snapshot, args=(made, time.monotonic() + LONG))
        asker.start()
        assert copy_on(made, LONG, lambda _: None).bytes == 4 * CHUNK_BYTES
        asker.join(5)
        assert not asker.is_alive() and device.room == {}
        assert image(made, {}) == now


def test_beside_the_program_it_is_read_in_short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()

    def read_paced(self: Device, spans: Sequence[Span], paced: Callable[[], bool]) -> object:
        asked.append(paced())
        return self.read(spans)

    with snapshotted() as (device, made):
        now = {1: device.holds(1)}
        for name in ("read_paced", "write_paced"):
            monkeypatch.setattr(Device, name, read_paced, raising=False)
        assert copy_on(made, LONG, lambda _: None).bytes == 4 * CHUNK_BYTES
        assert (asked, image(made, {}) == now) == ([True], True)


def test_room_for_a_process_that_ended_meanwhile_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    device, create = Device(spare=1 << 20), Device.create
    device.put(1, bytes(CHUNK_BYTES))
    with holding(device) as made:

        def ended(self: Device, handles: Sequence[HandleSpec]) -> DeviceRange:
            made.memory.specs, made.memory.ranges = {}, []
            return create(self, handles)

        monkeypatch.setattr(Device, "create", ended)
        make_room(made, LONG)
        assert device.room == {}


@pytest.mark.parametrize("end", [HostCopy.give_up, HostCopy.surrender])
def test_whatever_ends_a_copy_gives_the_room_back(end: Callable[[HostCopy], None]) -> None:
    with snapshotted() as (device, made):
        kept, made.memory.ranges = made.snapshot, []
        end(made)
        assert device.room == {} and kept and kept.over.is_set()
        if made.snapshot:
            with pytest.raises(RolledBack):
                copy_on(made, LONG, lambda _: None)


def test_nothing_is_lost_with_room_that_was_given_back_before_anything_was_in_it() -> None:
    """A program that found no room gets it, at the cost of no image: another device may have a snapshot."""
    device = Device(spare=1 << 20)
    device.put(1, random.Random(1).randbytes(CHUNK_BYTES))
    with holding(device) as made:
        assert make_room(made, LONG) > 0
        give_up_snapshot(made, time.monotonic() + LONG)
        assert copy_out(made, LONG, lambda _: None).snapshot == 0
        assert image(made, {}) == {1: device.holds(1)}
        assert copy_on(made, LONG, lambda _: None).bytes == 0


def test_room_in_which_nothing_is_may_be_given_back_after_the_cut() -> None:
    device, data = Device(spare=1 << 20), random.Random(1).randbytes(CHUNK_BYTES)
    device.put(1, data)
    with holding(device) as made:
        made.parent = baseline({1: data})
        assert make_room(made, LONG) > 0
        assert copy_out(made, LONG, lambda _: None).snapshot == 0
        give_up_snapshot(made, time.monotonic() + LONG)
        assert copy_on(made, LONG, lambda _: None).bytes == 0
