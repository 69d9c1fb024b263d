"""A process leaves its copy in the arena when it comes back, and its next copy reads only what has changed since."""

import itertools
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from host_device import (
    ABOUT,
    ACTS,
    LONG,
    SIZES,
    Act,
    Device,
    act,
    baseline,
    fails,
    image,
    look,
    process,
    sealed,
    written,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gcr.errors import DriverError
from gcr.hashing import CHUNK_BYTES, ChunkHashes
from gcr.imageerrors import HashMissed
from gcr.memory.memfiles import hold_still
from gcr.memory.partial import Where
from gcr.worker.holding import Holding
from gcr.worker.hostcopy import HostCopy
from gcr.worker.streaming import lay_out_held, make_ring
from gcr.worker.taking import copy_live, copy_on, copy_out, make_room

MIB = 1 << 20
BIG = 5 * CHUNK_BYTES
WRITE = Act(kind=2, which=0, number=1, value=1)


def leave(held: Holding, device: Device, number: int, last: bool = False) -> int:
    """Copies the process as a checkpoint does, checks every byte, and lets it run again. Returns the bytes read."""
    made = held.copy(number)
    look(made, device)
    made.reserve_known(sum(made.memory.sizes.values()))
    now, device.moved = {id: device.holds(id) for id in device.memory_of}, 0
    done = copy_out(made, LONG, lambda _: None, last=last)
    assert image(made, {}) == now
    assert (done.bytes, done.copied) == (sum(map(len, now.values())), device.moved)
    held.forget_copy(number)
    return device.moved


def changed(before: dict[int, bytes], device: Device) -> int:
    """Returns the bytes of chunks that differ from what lay there before."""
    found = 0
    for id in device.memory_of:
        now, then = device.holds(id), before.get(id, b"")
        for at in range(0, len(now), CHUNK_BYTES):
            chunk = now[at : at + CHUNK_BYTES]
            found += len(chunk) if then[at : at + CHUNK_BYTES] != chunk else 0
    return found


@settings(max_examples=60)
@given(acts=st.lists(ACTS, min_size=1, max_size=4), busy=st.sets(st.integers(1, 4)))
def test_each_copy_has_what_lies_there_and_reads_what_has_changed(acts: list[list[Act]], busy: set[int]) -> None:
    """This holds for any acts of the program, and whoever takes the room of the arena in between."""
    device, ids = Device(), iter(range(1, 1000))
    device.put(next(ids), random.Random(1).randbytes(BIG))
    with process(device, leaves_copies=True, arena_bytes=24 * MIB) as held:
        assert leave(held, device, 1) == BIG
        for number, some in enumerate(acts, 2):
            before = {id: device.holds(id) for id in device.memory_of}
            act(device, some, ids)
            if number - 1 in busy:
                arena = held.copy(number).arena
                arena.give_back(arena.take("other", 20 * MIB))
            rests = held.copy(number).former._rest  # type: ignore[union-attr]
            read = leave(held, device, number)
            total = sum(map(len, device.memory_of.values()))
            kept = {id: data for id, data in before.items() if id in device.memory_of}
            wasted = sum(map(len, before.values())) - sum(map(len, kept.values()))
            if number - 1 not in busy and not wasted and not rests:
                assert read == changed(before, device)
            assert read in (changed(before, device), total)


def imaged(made: HostCopy, device: Device, parent: dict[int, bytes], meanwhile: Callable[[], None], **how: bool) -> int:
    """Copies the process for an image as it runs, or with `stops` as it is taken off. Returns the bytes read before.

    The copy must have what lies there at the cut, and with `stops` every byte of it.
    """
    stops = how["stops"]
    look(made, device)
    made.reserve_known(sum(made.memory.sizes.values()))
    made.compare_with(baseline(parent), stops)
    device.moved = 0
    copy_live(made, LONG, lambda _: None, how["beside"])
    read = device.moved
    meanwhile()
    look(made, device)
    if not stops:
        make_room(made, LONG)
    copy_out(made, LONG, lambda _: None)
    now = {id: device.holds(id) for id in device.memory_of}
    found = sealed(made)
    if stops:
        everywhere = {id: bytes([Where.HERE]) * len(each) for id, each in found.chunks.items()}
        assert image(made, {}, type(found)(found.table, everywhere)) == now
    else:
        copy_on(made, LONG, lambda _: None)
    assert image(made, parent) == now
    made.forget([*made.memory.specs])  # its exports end once it runs on
    return read


@settings(max_examples=60)
@given(
    rounds=st.lists(st.tuples(ACTS, ACTS, st.booleans()), min_size=1, max_size=4),
    busy=st.sets(st.integers(2, 5)),
    spare=st.sampled_from([0, 3 * CHUNK_BYTES, 1 << 30]),
)
@example([([], [WRITE], True), ([WRITE], [WRITE], True), ([], [], True)], set(), 1 << 30)
@example([([], [], True), ([], [], True)], set(), 0)
def test_each_image_of_a_running_program_reads_what_has_changed_since_the_one_before(
    rounds: list[tuple[list[Act], list[Act], bool]], busy: set[int], spare: int
) -> None:
    """So does the last one, with which it stops: it has every byte, and reads only what the one before had not."""
    device, ids, parent, freed = Device(spare=spare), iter(range(1, 1000)), dict[int, bytes](), False
    device.put(next(ids), random.Random(1).randbytes(BIG))
    with process(device, leaves_copies=True, arena_bytes=64 * MIB) as held:
        for number, (before, meanwhile, beside) in enumerate(rounds, 1):
            act(device, before, ids)
            if number in busy:
                arena = held.copy(number).arena
                arena.give_back(arena.take("other", 60 * MIB))
            freed = freed or any(each.kind == 1 for each in before)
            lacking, total = changed(parent, device), sum(map(len, device.memory_of.values()))
            how = {"stops": number == len(rounds), "beside": beside}
            read = imaged(held.copy(number), device, parent, partial(act, device, meanwhile, ids), **how)
            held.forget_copy(number)
            assert read in (lacking, total)
            assert read == lacking or not beside or freed or busy
            freed = freed or any(each.kind == 1 for each in meanwhile)
            parent = {id: device.holds(id) for id in device.memory_of}


@pytest.fixture
def device() -> Device:
    made = Device()
    made.put(1, random.Random(2).randbytes(BIG))
    return made


@pytest.fixture
def held(device: Device) -> Iterator[Holding]:
    with process(device, leaves_copies=True) as made:
        leave(made, device, 1)
        yield made


def test_a_chunk_that_changed_once_is_read_once(held: Holding, device: Device) -> None:
    device.put(1, written(device.holds(1), 2, 7))
    assert [leave(held, device, number) for number in (2, 3)] == [CHUNK_BYTES, 0]


def test_the_last_copy_is_not_hashed_for_a_next_one(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed, real = list[int](), Device.hash

    def hash(self: Device, *asked: Any) -> ChunkHashes:
        hashed.append(1)
        return real(self, *asked)

    monkeypatch.setattr(Device, "hash", hash)
    with process(device, leaves_copies=True) as made:
        assert (leave(made, device, 1, last=True), hashed) == (BIG, [])
        assert (leave(made, device, 2), hashed) == (BIG, [1])  # after all: its image was not written, say


def test_copies_that_were_of_no_use_are_followed_by_some_that_are_not_compared(held: Holding, device: Device) -> None:
    """A program that changes everything does not stand still for each hash. One that stops doing so is noticed."""
    numbers = itertools.count(2)

    def copies(count: int, rewritten: bool) -> list[int]:
        read = []
        for number in itertools.islice(numbers, count):
            if rewritten:
                device.put(1, random.Random(100 + number).randbytes(BIG))
            read.append(leave(held, device, number))
        return read

    assert copies(1, rewritten=True) == [BIG]
    assert copies(2, rewritten=False) == [BIG, 0]
    assert copies(3, rewritten=True) == [BIG] * 3
    assert copies(4, rewritten=False) == [BIG, BIG, BIG, 0]
    assert copies(40, rewritten=True) == [BIG] * 40
    assert 0 in copies(16, rewritten=False)


def test_nothing_is_left_unless_it_is_asked_for(device: Device) -> None:
    with process(device) as held:
        assert [leave(held, device, number) for number in (1, 2)] == [BIG, BIG]


def test_what_another_copy_of_the_process_overwrote_is_not_taken_for_its_bytes(held: Holding, device: Device) -> None:
    """An image of the running program takes the owner's own segments."""
    before = device.holds(1)
    device.put(1, bytes(BIG))
    other = held.copy(2)
    look(other, device)
    other.reserve(BIG)
    copy_live(other, LONG, lambda _: None)
    held.forget_copy(2)
    device.put(1, before)
    assert leave(held, device, 3) == BIG


def test_what_an_image_still_reads_is_not_written_to(held: Holding, device: Device) -> None:
    reader = hold_still(next(iter(held.copy(2).arena._ledger.free)).fd)
    device.put(1, written(device.holds(1), 2, 7))
    assert leave(held, device, 2) == BIG
    os.close(reader)
    assert leave(held, device, 3) == 0


def test_room_that_another_process_needs_is_given_up(device: Device) -> None:
    with process(device, leaves_copies=True, arena_bytes=4 * MIB) as held:
        assert [leave(held, device, number) for number in (1, 2)] == [BIG, 0]
        arena = held.copy(3).arena
        arena.give_back(arena.take("other", 4 * MIB))
        assert [leave(held, device, number) for number in (3, 4)] == [BIG, 0]


def test_an_image_that_has_a_parent_is_compared_with_that_one(held: Holding, device: Device) -> None:
    device.put(1, written(device.holds(1), 2, 7))
    parent = {1: device.holds(1)}
    made = held.copy(2)
    look(made, device)
    made.reserve_known(BIG)
    made.compare_with(baseline(parent))
    device.moved = 0
    copy_out(made, LONG, lambda _: None)
    assert (image(made, parent)[1], device.moved) == (device.holds(1), 0)


def test_the_end_of_a_copy_that_was_not_made_leaves_nothing(held: Holding, device: Device) -> None:
    """A rollback before the drain."""
    made = held.copy(2)
    look(made, device)
    made.reserve_known(BIG)
    held.forget_copy(2)
    assert leave(held, device, 3) == BIG


def test_a_hash_that_fails_costs_the_next_copy_and_nothing_else(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process(device, leaves_copies=True) as held:
        with monkeypatch.context() as patch:
            patch.setattr(device, "hash", fails(DriverError("no")))
            assert leave(held, device, 1) == BIG
        assert [leave(held, device, number) for number in (2, 3)] == [BIG, 0]


def test_bytes_that_stream_pass_through_a_ring_of_their_own(held: Holding, device: Device) -> None:
    """The room was taken again before another process of the job found none."""
    made = held.copy(2)
    look(made, device)
    made.reserve_known(BIG)
    make_ring(made, 2 * MIB, 2, 1, True)
    lay_out_held(made)
    assert made.seal_for_image(ABOUT).segments == ()
    held.forget_copy(2)
    assert leave(held, device, 3) == BIG


def test_a_paranoid_copy_finds_a_chunk_that_a_hash_has_missed(held: Holding, device: Device) -> None:
    device.blind[1] = device.holds(1)
    device.put(1, written(device.holds(1), 3, 9))
    made = held.copy(2)
    look(made, device)
    made.reserve_known(BIG)
    with pytest.raises(HashMissed):
        copy_out(made, LONG, lambda _: None, paranoid=True)


def test_room_for_places_of_memory_that_was_freed_is_not_taken(held: Holding, device: Device) -> None:
    """A copy that would be mostly holes is made anew, without them."""
    del device.memory_of[1]
    device.put(2, bytes(SIZES[1]))
    made = held.copy(2)
    look(made, device)
    made.reserve_known(SIZES[1])
    copy_out(made, LONG, lambda _: None)
    assert made.planned.size == SIZES[1]


def test_a_device_that_hashes_on_the_host_is_not_asked(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    with process(device, leaves_copies=True) as held:
        monkeypatch.setattr(held.memory.attachment, "hashes_itself", lambda: False)
        monkeypatch.setattr(device, "hash", fails(AssertionError("asked")))
        assert [leave(held, device, number) for number in (1, 2)] == [BIG, BIG]
