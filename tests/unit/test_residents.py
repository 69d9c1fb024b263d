"""Resident memory as the daemon sees it: what is evicted for whom, in which order, and which devices agents know of."""

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from two_at_once import Held

from gcr.daemon.occupied import Occupied
from gcr.daemon.residents import Residents
from gcr.errors import DriverError, PeerGone
from gcr.protocol.operations.worker import CopyName

ONE, OTHER = "GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"


class Worker:
    """A worker with the memory of some processes: bytes and time by hold. `fails`: it no longer answers."""

    def __init__(self, device: str, **there: tuple[int, float]) -> None:
        self.device, self.pid, self.there, self.fails, self.free = device, 7, there, False, 0
        self.handles = self
        self.marked: list[bool] = []

    def resident(self) -> dict[str, tuple[int, float]]:
        if self.fails:
            raise PeerGone("the worker died")
        return dict(self.there)

    def evict(self, hold: str) -> int:
        if self.fails:
            raise PeerGone("the worker died")
        size = self.there.pop(hold, (0, 0.0))[0]
        self.free += size
        return size

    def stay(self, copy: CopyName) -> int:
        self.there[copy.hold] = (5, 9.0)
        return 5

    def spare(self) -> int:
        return self.free


@pytest.fixture
def occupied() -> Iterator[Occupied]:
    made = Occupied()
    yield made
    os.close(made.fd)


def made(occupied: Occupied, *workers: Worker, evicted: Callable[[str], object] | None = None) -> Residents:
    fleet = cast("Any", SimpleNamespace(living_workers=lambda: list(workers)))
    residents = Residents(fleet, occupied, evicted or list[str]().append)
    for worker in workers:
        residents._mark(worker.device)
    return residents


def test_the_job_that_was_suspended_first_goes_first_and_no_more_than_needed(occupied: Occupied) -> None:
    worker = Worker(ONE, second=(10, 2.0), first=(10, 1.0), third=(10, 3.0))
    elsewhere = Worker(OTHER, early=(10, 0.5))
    residents = made(occupied, worker, elsewhere)
    assert [one.hold for one in residents.all()] == ["early", "first", "second", "third"]
    assert residents.make_way(ONE, 11) == 20
    assert ([*worker.there], [*elsewhere.there]) == (["third"], ["early"])


def test_each_process_whose_memory_made_way_is_told_of(occupied: Occupied) -> None:
    """Its context follows. Memory that a restore has claimed stays, and so does the context."""
    told: list[str] = []
    worker = Worker(ONE, first=(10, 1.0), claimed=(0, 1.5), second=(10, 2.0))
    residents = made(occupied, worker, evicted=told.append)
    residents.make_way(ONE, 5)
    assert told == ["first"]
    residents.free_all()
    assert told == ["first", "second"]


def test_what_comes_back_itself_stays(occupied: Occupied) -> None:
    worker = Worker(ONE, first=(10, 1.0), second=(10, 2.0))
    assert made(occupied, worker).make_way(ONE, 100, ["first"]) == 10
    assert [*worker.there] == ["first"]


def test_a_worker_that_fails_is_passed_over(occupied: Occupied) -> None:
    dead, worker = Worker(ONE, first=(10, 1.0)), Worker(ONE, second=(10, 2.0))
    dead.fails = True
    residents = made(occupied, dead, worker)
    assert residents.make_way(ONE, 5) == 10
    worker.there["third"] = (10, 3.0)
    found, worker.fails = residents.all(), True
    assert [one.hold for one in found] == ["third"]
    assert residents.make_way(ONE, 5) == 0


def test_drivers_keep_their_room(occupied: Occupied) -> None:
    worker = Worker(ONE, first=(10, 1.0), second=(10, 2.0), third=(10, 3.0))
    worker.free = -15
    residents = made(occupied, worker)
    residents.keep_spare()
    assert [*worker.there] == ["third"]
    residents.keep_spare()
    assert [*worker.there] == ["third"]


def test_agents_know_of_a_device_before_there_is_memory_and_until_none_is_left(occupied: Occupied) -> None:
    worker = Worker(ONE)
    residents = Residents(cast("Any", SimpleNamespace(living_workers=lambda: [worker])), occupied, [].append)
    assert not residents.may_be_on(ONE)
    told: list[int] = []
    stay = worker.stay

    def staying(copy: CopyName) -> int:
        told.append(occupied._holders[ONE])
        residents.settle()  # another thread's: the memory is about to be there
        return stay(copy)

    worker.stay = staying  # type: ignore[method-assign]
    assert residents.stay(cast("Any", worker), CopyName("7.1", 9)) == 5
    assert (told, occupied._holders[ONE]) == ([1], 1)
    residents.settle()
    assert residents.may_be_on(ONE)
    residents.free_all()
    assert worker.there == {}
    residents.settle()
    assert (residents.may_be_on(ONE), occupied._holders[ONE]) == (False, 0)


def test_a_mark_stays_while_a_restore_that_may_be_taken_back_has_the_memory(occupied: Occupied) -> None:
    worker = Worker(ONE, claimed=(0, 1.0))
    residents = made(occupied, worker)
    assert (residents.all(), residents.make_way(ONE, 1)) == ([], 0)
    residents.settle()
    assert residents.may_be_on(ONE)


def test_a_mark_stays_where_memory_came_during_the_look(occupied: Occupied) -> None:
    worker = Worker(ONE)
    residents = made(occupied, worker)
    resident = worker.resident

    def looked_at() -> dict[str, tuple[int, float]]:
        before = resident()
        residents.stay(cast("Any", worker), CopyName("7.1", 9))
        return before

    worker.resident = looked_at  # type: ignore[method-assign]
    residents.settle()
    assert residents.may_be_on(ONE)
    worker.resident = dict  # type: ignore[method-assign]
    residents.settle()
    assert not residents.may_be_on(ONE)


def test_memory_that_does_not_stay_is_an_error_and_the_mark_goes(occupied: Occupied) -> None:
    worker = Worker(ONE)

    def refuses(_copy: CopyName) -> int:
        raise DriverError("no")

    worker.stay = refuses  # type: ignore[method-assign]
    residents = Residents(cast("Any", SimpleNamespace(living_workers=lambda: [worker])), occupied, [].append)
    with pytest.raises(DriverError):
        residents.stay(cast("Any", worker), CopyName("7.1", 9))
    residents.settle()
    assert not residents.may_be_on(ONE)


def test_a_program_waits_for_memory_of_a_migration_that_is_being_given_up(occupied: Occupied) -> None:
    standing = Held()

    def surrender(_hold: str) -> None:
        standing.stand()

    residents = made(occupied)
    residents.arriving.of("llm", "1").workers[7, ONE] = cast("Any", SimpleNamespace(device=ONE, surrender=surrender))

    def is_seen() -> None:
        assert residents.may_be_on(ONE)  # so an agent asks

    standing.second_waits(lambda: residents.arriving.drop("llm", "1"), lambda: residents.free([ONE]), is_seen)
    assert not residents.may_be_on(ONE)
