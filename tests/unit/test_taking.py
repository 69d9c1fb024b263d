"""Copies for images, against a device in host memory: arena and parent together have the bytes it held.

This holds for any writes, frees and allocations between the parent, the live copy and the cut.
"""

import ctypes
import errno
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr.drain import DeviceMemory, DeviceRange, HandleSpec, Move, Span
from gcr.errors import DeadlinePassed, DriverError, NoRoom, RolledBack, UsageError, WrongState
from gcr.hashing import CHUNK_BYTES, ChunkHashes, HashKey, hash_bytes
from gcr.hashing.baseline import Baseline
from gcr.imageerrors import HashMissed, ImageFailed
from gcr.memory.arena import Arena
from gcr.memory.layout import DamagedTable, SealedTable
from gcr.memory.partial import PartialTable, Where
from gcr.protocol.jsonbody import sealed_memfd
from gcr.worker import taking
from gcr.worker.guarded import copies_within, guarded, prepares_hash
from gcr.worker.holding import Holding
from gcr.worker.hostcopy import HostCopy
from gcr.worker.live import addresses
from gcr.worker.snapshot import SPARE_SHARE, portions, room_for, spare_bytes
from gcr.worker.taking import COPYING_SHARE, copy_live, copy_on, copy_out, give_up_snapshot, make_room

KEY = HashKey(bytes(range(32)))
SIZES = (100, CHUNK_BYTES, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES + 4096)
LONG = 60.0
ABOUT = {"job": "llm", "pid": 7, "start_time": 8, "transaction": 9, "ordinals": {"0": "GPU-1"}, "mappings": []}


Found = TypeVar("Found")


def read(fd: int, how: Callable[[int], Found]) -> Found:
    try:
        return how(fd)
    finally:
        os.close(fd)


def raw(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


@dataclass
class Device:
    """Implements as much of gcr.drain.DataDrain as a copy needs. `blind`: allocations whose hash never changes.

    spare: what a snapshot can have · room: what it has · moved: to the host
    """

    memory_of: dict[int, Any] = field(default_factory=dict)
    spare: int = 0
    room: dict[int, Any] = field(default_factory=dict)
    moved: int = 0
    slowly: float = 0.0
    blind: dict[int, bytes] = field(default_factory=dict)

    def put(self, id: int, data: bytes) -> None:
        self.memory_of[id] = ctypes.create_string_buffer(data, len(data))

    def holds(self, id: int) -> bytes:
        return bytes(self.memory_of[id].raw)

    def ranges(self) -> list[DeviceRange]:
        return [DeviceRange(ctypes.addressof(each), len(each), {id: 0}) for id, each in self.memory_of.items()]

    def memory(self) -> DeviceMemory:
        used = sum(map(len, self.room.values()))
        return DeviceMemory(used, (self.spare + SPARE_SHARE) * SPARE_SHARE // (SPARE_SHARE - 1), {})

    def create(self, handles: Sequence[HandleSpec]) -> DeviceRange:
        (one,) = handles
        made = ctypes.create_string_buffer(one.size)
        self.room[ctypes.addressof(made)] = made
        return DeviceRange(ctypes.addressof(made), one.size, {one.id: 0})

    def release(self, where: DeviceRange) -> None:
        del self.room[where.address]

    def move(self, moves: Sequence[Move]) -> Any:
        for each in moves:
            ctypes.memmove(each.target, each.source, each.size)
        return SimpleNamespace(wait=lambda _timeout: 0.0, done=lambda: 0)

    def read(self, spans: Sequence[Span]) -> Any:
        time.sleep(self.slowly)
        for span in spans:
            ctypes.memmove(span.host, span.device, span.size)
            self.moved += span.size
        return SimpleNamespace(wait=lambda _timeout: 0.0, done=lambda: 0)

    def forget(self, where: DeviceRange, ids: Sequence[int]) -> None:
        """Freed by the program: its memory is gone already."""

    def hash(self, ranges: Sequence[DeviceRange], key: HashKey, chunk_bytes: int, timeout: float) -> ChunkHashes:
        ids = [id for where in ranges for id in where.offsets]
        found = {id: hash_bytes(self.blind.get(id, self.holds(id)), key, chunk_bytes) for id in ids}
        return ChunkHashes(chunk_bytes, found)


@pytest.fixture(autouse=True, scope="module")
def small_slices() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gcr.worker.live.SLICE_BYTES", 2 * CHUNK_BYTES)
        yield


@contextmanager
def process(device: Device) -> Iterator[Holding]:
    arena = Arena(lambda _at, _n: None, lambda _at: None, segment_bytes=2 << 20, limit_bytes=1 << 30, threads=2)
    made = Holding(cast("Any", SimpleNamespace(drain=device)), arena, "GPU-1", "llm/7")
    try:
        yield made
    finally:
        arena.close()


@contextmanager
def holding(device: Device) -> Iterator[HostCopy]:
    """Yields a copy of a process that holds the device's memory."""
    with process(device) as held:
        made = held.copy(9)
        look(made, device)
        yield made


def look(made: HostCopy, device: Device) -> None:
    """Takes in the allocations that the program has by now."""
    for id in [*made.memory.specs]:
        if id not in device.memory_of and made.live:
            made.live.forget(id)
    made.memory.ranges = device.ranges()
    made.memory.specs = {id: HandleSpec(id, len(each)) for id, each in device.memory_of.items()}


def sealed(made: HostCopy) -> PartialTable:
    return read(made.seal_for_image(ABOUT).to_memfd(), PartialTable.from_fd)


def image(made: HostCopy, parent: Mapping[int, bytes], found: PartialTable | None = None) -> dict[int, bytes]:
    """Returns the image's bytes as its writer puts them together from the sealed table."""
    found = found or sealed(made)
    assert made.segments
    out = {}
    for handle in found.table.handles:
        parts = addresses(handle.offset, handle.spec.size, made.segments.parts)
        data = bytearray(b"".join(ctypes.string_at(at, size) for at, size in parts))
        for number, where in enumerate(found.chunks[handle.spec.id]):
            if where == Where.PARENT:
                at = slice(number * CHUNK_BYTES, (number + 1) * CHUNK_BYTES)
                data[at] = parent[handle.spec.id][at]
        out[handle.spec.id] = bytes(data)
    return out


def baseline(memory: Mapping[int, bytes]) -> Baseline:
    known = {id: (len(data), hash_bytes(data, KEY, CHUNK_BYTES)) for id, data in memory.items()}
    return read(Baseline(KEY, known).to_memfd(), Baseline.from_fd)


def written(data: bytes, number: int, value: int) -> bytes:
    """Returns the data with one chunk filled with this value."""
    at = number * CHUNK_BYTES % max(1, len(data))
    at -= at % CHUNK_BYTES
    size = min(CHUNK_BYTES, len(data) - at)
    return data[:at] + bytes([value]) * size + data[at + size :]


@dataclass(frozen=True)
class Act:
    """One act on held memory: write a chunk, free, or allocate."""

    kind: int
    which: int
    number: int
    value: int


ACTS = st.lists(st.builds(Act, st.integers(0, 5), st.integers(0, 9), st.integers(0, 3), st.integers(0, 2)), max_size=8)


def act(device: Device, acts: Sequence[Act], ids: Iterator[int]) -> None:
    for each in acts:
        held = sorted(device.memory_of)
        if each.kind == 0 or not held:
            device.put(next(ids), bytes([each.value]) * SIZES[each.which % len(SIZES)])
        elif each.kind == 1:
            del device.memory_of[held[each.which % len(held)]]
        else:
            id = held[each.which % len(held)]
            device.put(id, written(device.holds(id), each.number, each.value))


@settings(max_examples=150, deadline=None)
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


@settings(max_examples=150, deadline=None)
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


def fails(error: Exception) -> Callable[..., Any]:
    def call(*_: object) -> None:
        raise error

    return call


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


def test_what_the_parent_has_is_not_copied_while_it_runs_either() -> None:
    device = Device()
    device.put(1, random.Random(1).randbytes(8 * CHUNK_BYTES))
    before = {1: device.holds(1)}
    device.put(1, written(device.holds(1), 3, 7))
    with holding(device) as made:
        made.parent = baseline(before)
        told: list[dict[str, Any]] = []
        assert copy_live(made, LONG, told.append).copied == device.moved == CHUNK_BYTES
        assert told == [{"bytes": CHUNK_BYTES, "total_bytes": CHUNK_BYTES}]
        assert copy_out(made, LONG, lambda _: None).copied == 0
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
    for module in (sys.modules[__name__], taking):
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
