"""Resident memory in a worker: only beside a whole copy, for the restore of that copy, and released for others."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from host_device import LONG, Device, baseline, look, process
from two_at_once import Held

from gcr.drain import DeviceRange, HandleSpec
from gcr.errors import DriverError, NoRoom, WrongState
from gcr.hashing import CHUNK_BYTES
from gcr.worker.holding import Holding
from gcr.worker.holdings import Holdings
from gcr.worker.taking import copy_live, copy_out

SIZE = 3 * CHUNK_BYTES
COPY, LATER = 7, 8


class Owned(Device):
    """It knows which memory of the process was released. `full`: there is no room for ballast."""

    full = False

    def release(self, where: DeviceRange) -> None:
        for id in where.offsets:
            del self.memory_of[id]

    def create(self, handles: Any) -> DeviceRange:
        (one,) = handles
        self.put(one.id, bytes(one.size))
        return self.ranges()[0]

    def ballast(self, size: int) -> Any:
        if self.full:
            raise NoRoom("full", missing=size)
        self.room[0] = bytes(size)
        return SimpleNamespace(release=lambda: self.room.pop(0))


@contextmanager
def drained() -> Iterator[tuple[Owned, Holding]]:
    """Yields a process that was copied to the host, and whose memory is held still."""
    device = Owned()
    device.put(1, random.Random(1).randbytes(SIZE))
    with process(device) as held:
        look(held.copy(COPY), device)
        copy_out(held.copy(COPY), LONG, lambda _: None)
        yield device, held


def is_there(device: Owned, held: Holding) -> bool:
    assert (1 in device.memory_of) == (held.device_bytes >= SIZE)
    return 1 in device.memory_of


def test_memory_that_is_forgotten_leaves_no_empty_range_and_what_is_lent_is_counted_for_its_process() -> None:
    """A training that is saved each step would fill the worker's address space."""
    device = Owned()
    with process(device) as held:
        memory = held.memory
        for _ in range(3):
            for id in (1, 2):
                device.put(id, bytes(SIZE))
            memory.ranges, memory.lent = device.ranges(), {2}
            memory.specs = {id: HandleSpec(id, SIZE) for id in (1, 2)}
            assert held.device_bytes == SIZE
            held.forget([1, 2])
            assert (memory.ranges, memory.lent, held.device_bytes, device.memory_of) == ([], set(), 0, {})


def test_an_eviction_leaves_ballast_to_its_holder() -> None:
    """The driver needs that room again where the save of the control state fails."""
    with drained() as (_, held):
        held.stay(COPY)
        held.memory.hold_ballast(5)
        assert (held.memory.evictable_bytes, held.memory.evict()) == (SIZE, SIZE)
        assert (held.memory.ballast_bytes, held.memory.bytes, held.memory.residence) == (5, 5, None)


@pytest.mark.parametrize("end", [lambda held: held.memory.evict(), lambda held: held.forget_copy(COPY)])
def test_an_eviction_waits_for_memory_that_is_on_its_way_out(monkeypatch: pytest.MonkeyPatch, end: Any) -> None:
    """A program asks for the room meanwhile, and tries once more as soon as it hears that the room is free."""
    standing, release = Held(), Owned.release

    def released(device: Owned, where: DeviceRange) -> None:
        standing.stand()
        release(device, where)

    with drained() as (device, held):
        held.stay(COPY)
        monkeypatch.setattr(Owned, "release", released)

        def is_seen() -> None:
            assert held.memory.evictable_bytes == SIZE  # so the daemon asks for it

        standing.second_waits(lambda: end(held), held.memory.evict, is_seen)
        assert (held.memory.evictable_bytes, held.memory.residence, is_there(device, held)) == (0, None, False)


def test_where_a_release_fails_no_byte_counts_as_refilled(monkeypatch: pytest.MonkeyPatch) -> None:
    with drained() as (device, held):
        held.stay(COPY)
        with monkeypatch.context() as broken, pytest.raises(DriverError):
            broken.setattr(Owned, "release", lambda *_: fail())
            held.memory.evict()
        assert held.memory.evictable_bytes == SIZE
        assert held.create(COPY, 0) == 0  # to be refilled
        held.memory.uncreate()
        assert (held.memory.residence, is_there(device, held)) == (None, False)


def fail() -> None:
    raise DriverError("cuMemUnmap: 999")


def test_a_restore_takes_it_and_the_program_runs_with_it() -> None:
    with drained() as (device, held):
        assert held.stay(COPY) == held.memory.evictable_bytes == SIZE
        assert held.create(COPY, 5) == SIZE
        assert (held.memory.evict(), held.memory.ballast_bytes) == (0, 5)  # no longer to be evicted
        held.memory.drop_ballast()
        held.forget_copy(COPY)
        assert is_there(device, held)
        assert held.memory.evict() == 0


def test_it_is_released_for_another_process_and_the_restore_makes_it_anew() -> None:
    with drained() as (device, held):
        held.stay(COPY)
        assert held.memory.evict() == SIZE
        assert not is_there(device, held)
        assert held.memory.evict() == 0
        assert held.create(COPY, 0) == 0  # to be refilled
        assert is_there(device, held)


def test_a_restore_that_was_taken_back_leaves_it_resident() -> None:
    with drained() as (device, held):
        held.stay(COPY)
        held.create(COPY, 5)
        held.memory.uncreate()
        assert (held.memory.ballast_bytes, held.memory.evictable_bytes) == (0, SIZE)
        device.full = True
        with pytest.raises(NoRoom):
            held.create(COPY, 5)
        assert held.memory.evictable_bytes == SIZE
        held.memory.uncreate()
        assert held.create(COPY, 0) == SIZE
        held.release()
        held.create(COPY, 0)
        held.memory.uncreate()
        assert not is_there(device, held)  # it was made for the restore


def test_the_restore_of_another_copy_never_gets_it() -> None:
    with drained() as (device, held):
        copy_out(held.copy(LATER), LONG, lambda _: None)
        held.stay(COPY)
        assert held.create(LATER, 0) == 0
        assert device.holds(1) == bytes(SIZE)  # made anew


def test_the_end_of_its_copy_is_its_end_unless_a_program_has_it() -> None:
    with drained() as (device, held):
        copy_out(held.copy(LATER), LONG, lambda _: None)
        held.stay(COPY)
        held.forget_copy(LATER)
        assert is_there(device, held)
        held.forget_copy(COPY)
        assert not is_there(device, held)


def test_the_end_of_another_copy_does_not_wait_for_the_memory() -> None:
    with drained() as (_device, held):
        copy_out(held.copy(LATER), LONG, lambda _: None)
        held.stay(COPY)
        with held.memory.lock:
            ending = threading.Thread(target=held.forget_copy, args=(LATER,))
            ending.start()
            ending.join(10)
            assert not ending.is_alive()


@pytest.mark.parametrize("end", [Holding.release, Holding.surrender, Holding.forfeit])
def test_it_goes_with_what_the_worker_has_of_the_process(end: Any) -> None:
    with drained() as (device, held):
        held.stay(COPY)
        end(held)
        assert not is_there(device, held)
        assert held.memory.residence is None


def test_it_stays_beside_a_whole_copy_alone() -> None:
    with drained() as (device, held):
        with pytest.raises(WrongState):
            held.stay(LATER)
        device.put(2, bytes(SIZE))
        held.memory.ranges, held.memory.specs = device.ranges(), {i: HandleSpec(i, SIZE) for i in (1, 2)}
        with pytest.raises(WrongState):  # of what was made since
            held.stay(COPY)
        assert held.memory.evictable_bytes == 0


def test_a_copy_that_lacks_what_its_parent_has_is_not_whole() -> None:
    device = Owned()
    device.put(1, random.Random(1).randbytes(SIZE))
    with process(device) as held:
        copy = held.copy(COPY)
        look(copy, device)
        copy.parent = baseline({1: device.holds(1)})
        copy_live(copy, LONG, lambda _: None)
        copy_out(copy, LONG, lambda _: None)
        with pytest.raises(WrongState):
            held.stay(COPY)


def test_a_worker_tells_what_can_be_evicted() -> None:
    with drained() as (_device, held):
        holdings = Holdings(cast("Any", None), cast("Any", None), "GPU-1")
        holdings._by_hold["7.1"] = held
        assert holdings.resident() == {}
        held.stay(COPY)
        (size, since), first = holdings.resident()["7.1"], held.memory.residence
        assert (size, since) == (SIZE, first.since if first else 0)
        held.create(COPY, 0)
        assert holdings.resident() == {"7.1": (0, since)}  # it may be taken back
        held.forget_copy(COPY)
        assert holdings.resident() == {}
