"""Copies for images, against a device in host memory: arena and parent together have the bytes it held.

This holds for any writes, frees and allocations between the parent, the live copy and the cut.
"""

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import host_device
import pytest
from host_device import (
    ABOUT,
    ACTS,
    KEY,
    LONG,
    SIZES,
    Act,
    Device,
    act,
    baseline,
    fails,
    holding,
    image,
    look,
    process,
    raw,
    read,
    sealed,
    written,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr.drain import DeviceRange, HandleSpec, Span
from gcr.errors import DeadlinePassed, DriverError, NoRoom, UsageError, WrongState
from gcr.hashing import CHUNK_BYTES
from gcr.hashing.baseline import Baseline
from gcr.imageerrors import HashMissed
from gcr.memory.layout import DamagedTable, SealedTable
from gcr.memory.partial import PartialTable, Where
from gcr.protocol.jsonbody import sealed_memfd
from gcr.protocol.operations.operation import Done
from gcr.worker import taking
from gcr.worker.guarded import copies_within, guarded, prepares_hash
from gcr.worker.hostcopy import HostCopy
from gcr.worker.snapshot import SPARE_SHARE
from gcr.worker.taking import COPYING_SHARE, copy_live, copy_on, copy_out, make_room


@pytest.fixture(autouse=True, scope="module")
def small_slices() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gcr.worker.live.SLICE_BYTES", 2 * CHUNK_BYTES)
        yield


@settings(max_examples=150)
@given(first=ACTS, then=ACTS, last=ACTS, live=st.booleans(), paranoid=st.booleans(), has_parent=st.booleans())
def test_what_is_copied_and_what_the_parent_has_is_what_lay_there_at_the_cut(
    first: list[Act], then: list[Act], last: list[Act], live: bool, paranoid: bool, has_parent: bool
) -> None:
    device, ids = Device(), iter(range(1, 1000))
    device.put(next(ids), random.Random(1).randbytes(SIZES[3]))
    act(device, first, ids)
    before = {id: device.holds(id) for id in device.memory_of} if has_parent else {}
    act(device, then, ids)
    with holding(device) as made:
        made.parent = baseline(before) if has_parent else None
        if live:
            copy_live(made, LONG, lambda _: None)
            act(device, last, ids)
            look(made, device)
        now, device.moved = {id: device.holds(id) for id in device.memory_of}, 0
        done = copy_out(made, LONG, lambda _: None, paranoid)
        assert image(made, before) == now
        total = sum(map(len, now.values()))
        assert done.bytes == total
        if paranoid:
            assert device.moved >= total
        elif now == before:
            assert device.moved == 0


@settings(max_examples=150)
@given(first=ACTS, last=ACTS, after=ACTS, live=st.booleans(), has_parent=st.booleans(), spare=st.integers(0, 1 << 20))
def test_what_goes_by_a_snapshot_is_what_lay_there_at_the_cut(
    first: list[Act], last: list[Act], after: list[Act], live: bool, has_parent: bool, spare: int
) -> None:
    """This holds for any writes, frees and allocations before it is read, and for any room."""
    device, ids = Device(spare=spare), iter(range(1, 1000))
    device.put(next(ids), random.Random(1).randbytes(SIZES[3]))
    act(device, first, ids)
    before = {id: device.holds(id) for id in device.memory_of} if has_parent else {}
    with process(device) as held:
        made = held.copy(9)
        look(made, device)
        made.parent = baseline(before) if has_parent else None
        if live:
            copy_live(made, LONG, lambda _: None)
        act(device, last, ids)
        look(made, device)
        room = make_room(made, LONG)
        assert room == sum(map(len, device.room.values())) <= spare + SPARE_SHARE
        now, device.moved = {id: device.holds(id) for id in device.memory_of}, 0
        done = copy_out(made, LONG, lambda _: None)
        assert device.moved == done.copied - done.snapshot
        assert done.snapshot == min(room, done.copied)
        found = sealed(made)
        act(device, after, ids)
        held.forget([id for id in made.memory.specs if id not in device.memory_of])
        look(made, device)
        assert copy_on(made, LONG, lambda _: None).bytes == done.snapshot
        assert (device.moved, device.room) == (done.copied, {})
        assert image(made, before, found) == now


def test_what_the_parent_has_is_not_copied_while_it_runs_either() -> None:
    device = Device()
    device.put(1, random.Random(1).randbytes(8 * CHUNK_BYTES))
    before = {1: device.holds(1)}
    device.put(1, written(device.holds(1), 3, 7))
    with holding(device) as made:
        made.parent = baseline(before)
        told: list[Done] = []
        assert copy_live(made, LONG, told.append).copied == device.moved == CHUNK_BYTES
        assert told == [Done(CHUNK_BYTES, CHUNK_BYTES)]
        assert copy_out(made, LONG, lambda _: None).copied == 0
        assert image(made, before) == {1: device.holds(1)}


def test_the_device_computes_nothing_beside_a_program_that_it_would_end_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is copied then; what the parent has as well is the parent's still, and the cut asks the device."""
    device = Device()
    device.put(1, random.Random(1).randbytes(8 * CHUNK_BYTES))
    before = {1: device.holds(1)}
    device.put(1, written(device.holds(1), 3, 7))
    asked, hash = list[float](), device.hash
    monkeypatch.setattr(device, "hash", lambda *words: asked.append(device.moved) or hash(*words))
    with holding(device) as made:
        made.parent = baseline(before)
        assert copy_live(made, LONG, lambda _: None, beside=False).copied == device.moved == 8 * CHUNK_BYTES
        assert not asked
        assert copy_out(made, LONG, lambda _: None).copied == 0
        assert len(asked) == 1 and made.live
        assert [*made.live.chunks[1]].count(Where.HERE) == 1
        assert image(made, before) == {1: device.holds(1)}


def test_room_for_what_was_made_since_a_live_copy_is_taken_before_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    device.put(1, random.Random(1).randbytes(4 * CHUNK_BYTES))
    with holding(device) as made:
        copy_live(made, LONG, lambda _: None)
        device.put(2, random.Random(2).randbytes(40 * CHUNK_BYTES))
        look(made, device)
        made.reserve_known(44 * CHUNK_BYTES)
        monkeypatch.setattr(made.arena, "take", None)
        assert copy_out(made, LONG, lambda _: None).copied == 40 * CHUNK_BYTES
        assert image(made, {}) == {id: device.holds(id) for id in (1, 2)}


@contextmanager
def grown(spare: int) -> Iterator[tuple[Device, HostCopy]]:
    """Since a live copy, by what there is no room for on the host yet."""
    device = Device(spare=spare)
    device.put(1, random.Random(1).randbytes(4 * CHUNK_BYTES))
    with holding(device) as made:
        copy_live(made, LONG, lambda _: None)
        device.put(2, random.Random(2).randbytes(40 * CHUNK_BYTES))
        look(made, device)
        assert bool(make_room(made, LONG)) == (spare > 0)
        yield device, made


def test_what_goes_by_a_snapshot_has_its_room_on_the_host_after_the_cut() -> None:
    with grown(spare=44 * CHUNK_BYTES) as (device, made):
        there = made.arena.pinned_bytes
        assert copy_out(made, LONG, lambda _: None).snapshot == 40 * CHUNK_BYTES
        assert made.arena.pinned_bytes == there < made.arena.bytes, "the program stood while room was made"
        found, now = sealed(made), {id: device.holds(id) for id in (1, 2)}
        device.put(1, bytes(4 * CHUNK_BYTES))
        assert copy_on(made, LONG, lambda _: None).bytes == 40 * CHUNK_BYTES
        assert made.arena.pinned_bytes == made.arena.bytes
        assert image(made, {}, found) == now


@pytest.mark.parametrize("spare", [0, 8 * CHUNK_BYTES])
def test_what_is_copied_at_the_cut_has_its_room_there(spare: int) -> None:
    """The snapshot has room for some of it, or there is none."""
    with grown(spare) as (device, made):
        assert copy_out(made, LONG, lambda _: None).snapshot <= spare + SPARE_SHARE
        assert made.arena.pinned_bytes == made.arena.bytes
        copy_on(made, LONG, lambda _: None)
        assert image(made, {}) == {id: device.holds(id) for id in (1, 2)}


def test_no_room_on_the_host_after_the_cut_is_said_and_the_snapshot_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with grown(spare=44 * CHUNK_BYTES) as (device, made):
        copy_out(made, LONG, lambda _: None)
        monkeypatch.setattr(os, "posix_fallocate", fails(OSError(errno.ENOSPC, "full")))
        with pytest.raises(NoRoom, match="host memory"):
            copy_on(made, LONG, lambda _: None)
        made.give_up()
        assert (device.room, made.arena.bytes - made.arena.free_bytes) == ({}, 0)


class Clock:
    """A clock that moves only in sleeps: no pause of the machine's own is counted."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (host_device, taking):
        monkeypatch.setattr(module, "time", made)
    return made


def test_a_live_copy_copies_for_a_part_of_the_time(clock: Clock) -> None:
    """Also one of a single allocation, and what is copied at the cut is not held up."""
    device = Device(slowly=0.05)
    device.put(1, random.Random(1).randbytes(8 * CHUNK_BYTES))
    with holding(device) as made:
        assert copy_live(made, LONG, lambda _: None).copied == 8 * CHUNK_BYTES
        assert (took := clock.now) > (3 / COPYING_SHARE + 1) * 0.05 - 1e-9
        device.put(1, bytes(8 * CHUNK_BYTES))
        look(made, device)
        assert copy_out(made, LONG, lambda _: None).copied == 8 * CHUNK_BYTES
        assert clock.now - took < took / 2


def test_no_pause_of_a_live_copy_is_what_a_deadline_is_missed_by(clock: Clock) -> None:
    device = Device(slowly=0.1)
    device.put(1, random.Random(1).randbytes(8 * CHUNK_BYTES))
    with holding(device) as made:
        assert copy_live(made, 0.6, lambda _: None).copied == 8 * CHUNK_BYTES
        assert clock.now <= 0.6 < 0.9 * (3 / COPYING_SHARE + 1) * 0.1


def test_no_restore_takes_a_copy_that_lacks_bytes() -> None:
    device = Device()
    device.put(1, random.Random(1).randbytes(3 * CHUNK_BYTES))
    with holding(device) as made:
        made.parent = baseline({1: device.holds(1)})
        copy_out(made, LONG, lambda _: None)
        with pytest.raises(WrongState, match="for an image alone"):
            made.seal(ABOUT)
        with pytest.raises(DamagedTable):
            read(made.seal_for_image(ABOUT).to_memfd(), SealedTable.from_fd)
        made.give_up()
        next_one = HostCopy(made.memory, made.arena, made.device)
        assert copy_out(next_one, LONG, lambda _: None).copied == 3 * CHUNK_BYTES, "the parent is the copy's alone"
        assert {each.spec.id for each in next_one.seal(ABOUT).handles} == {1}


def test_a_live_copy_that_came_to_no_cut_is_not_sealed() -> None:
    device = Device()
    device.put(1, bytes(100))
    with holding(device) as made:
        copy_live(made, LONG, lambda _: None)
        assert made.live
        made.place(made.live.layout)
        for seal in (made.seal, made.seal_for_image):
            with pytest.raises(WrongState):
                seal(ABOUT)


def test_paranoid_finds_what_a_hash_missed_in_a_live_copy() -> None:
    """Without it the old bytes go into the image: that is what the hash stands for."""
    for paranoid in (False, True):
        device = Device()
        device.put(1, random.Random(1).randbytes(3 * CHUNK_BYTES))
        with holding(device) as made:
            copy_live(made, LONG, lambda _: None)
            old = device.blind[1] = device.holds(1)
            device.put(1, old[:-1] + bytes([old[-1] ^ 1]))
            look(made, device)
            if paranoid:
                with pytest.raises(HashMissed, match="allocation 1"):
                    copy_out(made, LONG, lambda _: None, paranoid)
            else:
                copy_out(made, LONG, lambda _: None)
                assert image(made, {}) == {1: old}


def test_paranoid_copies_what_the_parent_is_said_to_have() -> None:
    """The image's writer compares the names."""
    device = Device()
    device.put(1, random.Random(1).randbytes(3 * CHUNK_BYTES))
    old = device.blind[1] = device.holds(1)
    device.put(1, old[:-1] + bytes([old[-1] ^ 1]))
    with holding(device) as made:
        made.parent = baseline({1: old})
        copy_out(made, LONG, lambda _: None, paranoid=True)
        assert made.seal_for_image(ABOUT).chunks == {1: bytes([Where.BOTH]) * 3}
        assert image(made, {}) == {1: device.holds(1)}


@given(st.data())
def test_a_table_of_a_copy_that_is_not_what_was_sealed_is_refused(data: st.DataObject) -> None:
    table = SealedTable("llm", 7, 8, 9, {0: "GPU-1"}, (), (), ())
    whole = PartialTable.whole(table)
    text = bytearray(read(whole.to_memfd(), raw))
    assert read(sealed_memfd("t", bytes(text)), PartialTable.from_fd) == whole
    text[data.draw(st.integers(0, len(text) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedTable):
        read(sealed_memfd("t", bytes(text)), PartialTable.from_fd)


def test_what_is_no_baseline_is_refused() -> None:
    whole = Baseline(KEY, {3: (300_000, bytes(32)), 4: (1, bytes(range(16)))})
    text = read(whole.to_memfd(), raw)
    assert read(sealed_memfd("b", text), Baseline.from_fd) == whole
    for cut in (text[:-1], text[: 8 + 32 + 7], text[:20], b"GCRTABLE" + text[8:]):
        with pytest.raises(UsageError):
            read(sealed_memfd("b", cut), Baseline.from_fd)


class Announced(Device):
    """Says in which order it is asked."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(spare=4 * CHUNK_BYTES)
        self.said: list[str] = []
        self.error = error

    def make_ready_to_hash(self, timeout: float) -> None:
        assert timeout > 0
        self.said.append("ready")
        if self.error:
            raise self.error

    def read(self, spans: Sequence[Span]) -> Any:
        self.said.append("read")
        return super().read(spans)

    def create(self, handles: Sequence[HandleSpec]) -> DeviceRange:
        self.said.append("create")
        return super().create(handles)


@pytest.mark.parametrize("error", [None, DriverError("no kernel"), DeadlinePassed("late")])
def test_the_device_is_ready_to_hash_before_a_program_stops(error: Exception | None) -> None:
    for step, first in ((partial(copy_live, progress=lambda _report: None), "read"), (make_room, "create")):
        device = Announced(error)
        device.put(1, bytes(CHUNK_BYTES))
        with holding(device) as made:
            step(made, 60.0)
            assert device.said[:2] == ["ready", first]
            made.give_room_back()


class Plain:
    """A drain without the optional parts."""


@pytest.mark.parametrize("has", [copies_within, prepares_hash])
def test_a_guarded_drain_has_the_optional_parts_of_its_drain(has: Callable[[Any], bool]) -> None:
    assert has(guarded("nvidia", cast("Any", Announced())))
    assert has(Announced())
    assert not has(guarded("nvidia", cast("Any", Plain())))
