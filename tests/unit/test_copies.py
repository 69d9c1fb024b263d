"""Several copies of one process in a worker: each has the bytes of its own cut, and the end of one touches no other."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from host_device import ACTS, LONG, SIZES, Act, Device, act, baseline, image, look, process, sealed
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr.drain import DeviceRange, Span
from gcr.errors import DeadlinePassed, RolledBack
from gcr.hashing import CHUNK_BYTES
from gcr.imageerrors import ImageFailed
from gcr.worker.holding import Holding
from gcr.worker.hostcopy import HostCopy
from gcr.worker.taking import copy_live, copy_on, copy_out, give_up_snapshot, make_room

ROOM = 1 << 24


def cut(copy: HostCopy, live: bool = False) -> None:
    if live:
        copy_live(copy, LONG, lambda _: None)
    make_room(copy, LONG)
    copy_out(copy, LONG, lambda _: None)


@settings(max_examples=100)
@given(
    acts=st.lists(ACTS, min_size=3, max_size=3),
    spare=st.sampled_from([0, 1 << 19, ROOM]),
    live=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    has_parent=st.booleans(),
    order=st.permutations(range(3)),
)
def test_copies_that_overlap_have_each_the_bytes_of_its_cut(
    acts: list[list[Act]], spare: int, live: tuple[bool, ...], has_parent: bool, order: list[int]
) -> None:
    """This holds for any writes, frees and allocations between the cuts, and any order of the reads."""
    device, ids = Device(spare=spare), iter(range(1, 1000))
    device.put(next(ids), random.Random(1).randbytes(SIZES[3]))
    before = {id: device.holds(id) for id in device.memory_of} if has_parent else {}
    with process(device) as held:
        copies, tables, nows = [held.copy(number) for number in range(3)], [], []
        for number, copy in enumerate(copies):
            act(device, acts[number], ids)
            look(copy, device)
            copy.parent = baseline(before) if has_parent else None
            cut(copy, live[number])
            nows.append({id: device.holds(id) for id in device.memory_of})
            tables.append(sealed(copy))
        for number in order:
            copy_on(copies[number], LONG, lambda _: None)
            assert image(copies[number], before, tables[number]) == nows[number]
            held.forget_copy(number)
        assert device.room == {}
        assert (arena := copies[0].arena).free_bytes == arena.bytes


@contextmanager
def two(spare: int = ROOM) -> Iterator[tuple[Device, Holding, HostCopy, HostCopy]]:
    """Yields a process with two copies of different bytes, neither of them read yet."""
    device = Device(spare=spare)
    with process(device) as held:
        made = held.copy(1), held.copy(2)
        for number, copy in enumerate(made):
            device.put(1, random.Random(number).randbytes(4 * CHUNK_BYTES))
            look(copy, device)
            cut(copy)
        assert len(device.room) == 2
        yield device, held, *made


@pytest.mark.parametrize(
    "end",
    [
        lambda held, one: held.forget_copy(1),
        lambda held, one: one.surrender(),
        lambda held, one: give_up_snapshot(one, time.monotonic()),
        lambda held, one: held.release(),
    ],
)
def test_the_end_of_one_leaves_the_other_whole(end: Callable[[Holding, HostCopy], object]) -> None:
    with two() as (device, held, one, other):
        now, table = {1: device.holds(1)}, sealed(other)
        held.memory.ranges = []  # the test's, and not of the device
        end(held, one)
        copy_on(other, LONG, lambda _: None)
        assert image(other, {}, table) == now


def test_the_end_of_the_process_is_the_end_of_both() -> None:
    with two() as (device, held, one, other):
        held.memory.ranges = []
        held.forfeit()
        assert device.room == {} and not held.copies
        assert one.arena.free_bytes == one.arena.bytes
        assert [copy_on(each, LONG, lambda _: None).bytes for each in (one, other)] == [0, 0]


def test_both_are_counted_and_given_up_where_a_program_needs_the_room() -> None:
    with two() as (device, held, one, other):
        assert held.device_bytes == 3 * 4 * CHUNK_BYTES
        end = time.monotonic()
        for each in held.copies:
            give_up_snapshot(each, end)
        assert (device.room, held.device_bytes) == ({}, 4 * CHUNK_BYTES)
        for each in (one, other):
            with pytest.raises(ImageFailed):
                copy_on(each, LONG, lambda _: None)


def ends(*steps: Callable[[], object]) -> bool:
    """Tells whether the steps come to their end on another thread."""
    done = threading.Event()

    def all_of_it() -> None:
        for step in steps:
            step()
        done.set()

    threading.Thread(target=all_of_it, daemon=True).start()
    return done.wait(10)


def test_what_one_waits_for_holds_up_neither_the_other_nor_a_free_of_the_program() -> None:
    """The first is taking room on the host, which can take seconds; its lock is held."""
    with two() as (_device, held, one, other), one.lock:
        read, forget = partial(copy_on, other, LONG, lambda _: None), partial(held.forget_copy, 2)
        assert ends(partial(held.forget, [1]), read, forget)


def test_a_snapshot_is_read_and_given_up_while_the_memory_is_being_copied_for_another_cut() -> None:
    """The device hashes it for instance, with the memory's lock held; the program may stand still."""
    with two() as (_device, held, one, other), held.memory.lock:
        assert ends(partial(copy_on, one, LONG, lambda _: None), partial(held.forget_copy, 1))
        assert ends(partial(held.forget_copy, 2)) and other.use.given_up


def test_nothing_is_taken_for_a_copy_that_was_given_up_meanwhile() -> None:
    """Its last call came too late: the daemon had given it up, and nothing would give back what it takes."""
    device = Device(spare=ROOM)
    device.put(1, bytes(4 * CHUNK_BYTES))
    with process(device) as held:
        late = held.copy(1)
        look(late, device)
        held.forget_copy(1)
        with pytest.raises(RolledBack, match="given up"):
            late.reserve(CHUNK_BYTES)
        with pytest.raises(RolledBack, match="given up"):
            copy_live(late, LONG, lambda _: None)
        assert make_room(late, LONG) == 0
        assert (device.room, late.arena.bytes) == ({}, 0)
        assert held.copy(1) is not late


class Slow(Device):
    """Its reads last until they are waited for with patience; `said`: waits with patience, and releases."""

    said: list[str]

    def read(self, spans: Sequence[Span]) -> Any:
        return SimpleNamespace(wait=self.wait, done=lambda: 0)

    def wait(self, timeout: float) -> float:
        if timeout < 1.0:
            raise DeadlinePassed("still copying")
        self.said.append("waited")
        return 0.0

    def release(self, where: DeviceRange) -> None:
        self.said.append("released")

    def forget(self, where: DeviceRange, ids: Sequence[int]) -> None:
        self.said.append("forgotten")


@contextmanager
def in_flight(spare: int, read: Callable[[HostCopy, float, Any], object]) -> Iterator[tuple[Holding, list[str]]]:
    """Yields a process of which copy 1 has a transfer in flight that its own call has given up; copy 2 has none."""
    device = Slow(spare=spare)
    device.said = []
    device.put(1, bytes(4 * CHUNK_BYTES))
    with process(device) as held:
        look(held.copy(1), device)
        make_room(held.copy(1), LONG)
        if spare:
            copy_out(held.copy(1), LONG, lambda _: None)
        held.copy(2).reserve(CHUNK_BYTES)
        with pytest.raises(DeadlinePassed):
            read(held.copy(1), 0.0, lambda _: None)
        assert device.said == []
        yield held, device.said


ENDS: list[Callable[[Holding], object]] = [lambda held: held.release(), lambda held: held.forget([1])]


@pytest.mark.parametrize("end", ENDS)
def test_memory_is_unmapped_after_the_transfers_from_it(end: Callable[[Holding], object]) -> None:
    with in_flight(0, copy_out) as (held, said):
        end(held)
        assert said[0] == "waited" and len(said) == 2


@pytest.mark.parametrize(("spare", "read"), [(0, copy_out), (ROOM, copy_on)])
def test_a_copy_ends_after_its_own_transfers_and_waits_for_those_of_no_other(
    spare: int, read: Callable[[HostCopy, float, Any], object]
) -> None:
    with in_flight(spare, read) as (held, said):
        held.forget_copy(2)
        assert said == []
        held.forget_copy(1)
        assert said == ["waited", *["released"] * bool(spare)]
        held.release()
        assert said.count("released") == 1 + bool(spare)


def test_the_read_of_a_snapshot_holds_up_no_free_of_the_program() -> None:
    with in_flight(ROOM, copy_on) as (held, said):
        held.forget([1])
        assert said == ["released"]
