"""Copies that a worker takes over: refilled without being pinned, each segment by its own state, and pinned later."""

import ctypes
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from arenas import MiB, Pins
from host_device import ABOUT, LONG, Device, look, process

from gcr.drain import DeviceRange, HandleSpec, Span
from gcr.errors import DeadlinePassed, NoRoom, RolledBack
from gcr.memory.arena import Arena
from gcr.memory.memfiles import NotASegment
from gcr.worker import ahead, bounce, link
from gcr.worker.bounce import SLOTS_EACH, Slots
from gcr.worker.holding import Holding
from gcr.worker.refilling import copy_in
from gcr.worker.taking import copy_out

COPY = 9
HANDLES = {1: 3 * MiB, 2: 3 * MiB, 3: 3 * MiB}  # segments have 2 MiB
TOTAL = sum(HANDLES.values())
THREADS = 2
RING, SLOT = THREADS * SLOTS_EACH, 2 * MiB


@pytest.fixture(autouse=True)
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounce, "SLOT_BYTES", SLOT)


class Made(Device):
    """A device that makes memory. `hosts`: from where each copy came. `meet`: called in each copy to it."""

    meet: Callable[[], Any] = staticmethod(lambda: None)

    def __init__(self) -> None:
        super().__init__()
        self.hosts: list[int] = []

    def create(self, handles: Sequence[HandleSpec]) -> DeviceRange:
        sizes = [spec.size for spec in handles]
        made = ctypes.create_string_buffer(sum(sizes))
        self.room[ctypes.addressof(made)] = made
        starts = accumulate(sizes, initial=0)
        return DeviceRange(
            ctypes.addressof(made), sum(sizes), {h.id: at for h, at in zip(handles, starts, strict=False)}
        )

    def release(self, where: DeviceRange) -> None:
        self.memory_of.clear()
        super().release(where)

    def write(self, spans: Sequence[Span]) -> Any:
        self.meet()
        for span in spans:
            ctypes.memmove(span.device, span.host, span.size)
            self.hosts.append(span.host)
        return SimpleNamespace(wait=lambda _timeout: 0.0, done=lambda: sum(span.size for span in spans))


class Slow(Made):
    """One whose copies take 5 ms. `flying`: copies in flight. `most`: of these at once."""

    def __init__(self) -> None:
        super().__init__()
        self.flying, self.most = 0, 0

    def write(self, spans: Sequence[Span]) -> Any:
        self.flying += 1
        self.most = max(self.most, self.flying)
        super().write(spans)
        return SimpleNamespace(wait=self.landed, done=lambda: 0)

    def landed(self, _timeout: float) -> float:
        time.sleep(0.005)
        self.flying -= 1
        return 0.0


class Taken:
    """A process that another worker has taken over, and what it pins."""

    def __init__(self, device: Made, data: bytes) -> None:
        self.device, self.data, self.pins = device, data, Pins()
        self.arena = Arena(
            self.pins.pin, self.pins.unpin, segment_bytes=2 * MiB, limit_bytes=4 * MiB, threads=2, hurry=4
        )
        self.held = Holding(cast("Any", SimpleNamespace(drain=device)), self.arena, "GPU-1", "llm/7")
        self.slots = Slots(self.arena, THREADS)

    @property
    def copy(self) -> Any:
        return self.held.copy(COPY)

    def refill(self, deadline: float = LONG, paced: Callable[[int], bool] = lambda _size: False) -> Any:
        return copy_in(self.copy, deadline, lambda _: None, paced, self.slots)

    def is_back(self) -> bool:
        (where,) = self.held.memory.ranges
        return ctypes.string_at(where.address, TOTAL) == self.data


@contextmanager
def taken_over(device: Made | None = None) -> Iterator[Taken]:
    """Yields a suspended process whose segments come from their keeper, with its memory made."""
    device = device or Made()
    for id, size in HANDLES.items():
        device.put(id, random.Random(id).randbytes(size))
    data = b"".join(map(device.holds, HANDLES))
    with process(device) as first:
        look(first.copy(COPY), device)
        copy_out(first.copy(COPY), LONG, lambda _: None)
        segments = first.copy(COPY).segments
        assert segments
        made = Taken(device, data)
        made.copy.reclaim(first.copy(COPY).seal(ABOUT), [os.dup(fd) for fd in segments.fds])
        first.release()
    made.held.create(COPY, 0)
    yield made
    made.held.forfeit()
    made.arena.close()
    assert made.pins.now == {}


def test_a_copy_is_refilled_without_being_pinned_and_pinned_before_the_next() -> None:
    with taken_over() as made:
        assert made.pins.ever == 0
        assert made.refill().bytes == TOTAL
        assert made.is_back()
        assert (made.pins.ever, made.arena.pinned_bytes) == (RING, RING * SLOT)
        taken = {*made.copy.segments}
        made.held.forget_copy(COPY)
        made.arena.prepare(lambda: {"llm/7": TOTAL})
        assert made.pins.ever == RING + len(taken)
        again = made.arena.take("llm/7", TOTAL)
        assert {*again} == taken
        assert made.pins.ever == RING + len(taken)
        made.arena.give_back(again)


@pytest.mark.parametrize("pinned", [[0], [1, 3], range(5)])
def test_what_is_pinned_goes_the_direct_way_and_the_rest_through_slots(pinned: Sequence[int]) -> None:
    with taken_over() as made:
        parts = made.copy.segments.parts
        assert len(parts) == 5
        with made.arena._turns.next():
            made.arena._keep([parts[at] for at in pinned], 2)
        made.refill()
        assert made.is_back()
        direct = {at for at, part in enumerate(parts) if part.address in made.device.hosts}
        assert direct == {*pinned}
        assert made.pins.ever == len(pinned) + (RING if len(pinned) < 5 else 0)


def test_what_is_resident_needs_no_slot() -> None:
    with taken_over() as made:
        made.held.memory.stay(COPY, HANDLES)
        assert made.refill().bytes == 0
        assert made.pins.ever == 0


def test_where_the_host_has_no_memory_for_slots_the_segments_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_asked: Any) -> Any:
        raise NoRoom("host memory is short", missing=1)

    with taken_over() as made:
        monkeypatch.setattr(Arena, "take_slots", short)
        made.refill()
        assert made.is_back()
        assert {*made.pins.now} == {part.address for part in made.copy.segments}
        assert made.arena.unpinned(made.copy.segments) == frozenset()


def test_while_the_driver_is_at_work_few_copies_of_all_threads_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounce, "PACED_BYTES", SLOT)
    for at_work in (True, False):
        with taken_over(Slow()) as made:
            made.refill(paced=lambda size, at_work=at_work: at_work and size == TOTAL)
            assert made.is_back()
            assert (cast("Slow", made.device).most == 1) is at_work


def test_a_deadline_ends_it_between_pieces_and_a_later_refill_has_every_byte() -> None:
    go_on = Event()
    with taken_over() as made:
        made.device.meet = lambda: go_on.wait(LONG)
        with pytest.raises(DeadlinePassed):
            made.refill(deadline=0.2)
        with pytest.raises(DeadlinePassed, match="had the slots"):
            made.refill(deadline=0.2)
        go_on.set()
        made.held.memory.uncreate()  # waits for the pieces in flight
        assert len(made.device.hosts) <= RING
        assert made.held.memory.ranges == []
        made.held.create(COPY, 0)
        made.refill()
        assert made.is_back()


@pytest.mark.parametrize("end", [Holding.forfeit, Holding.surrender])
def test_the_end_of_the_process_ends_it_and_its_memory_goes_after_the_pieces_in_flight(
    end: Callable[[Holding], None],
) -> None:
    met, go_on, raised = Event(), Event(), list[Exception]()

    def refill() -> None:
        try:
            made.refill()
        except RolledBack as error:
            raised.append(error)

    with taken_over() as made:
        made.device.meet = lambda: (met.set(), go_on.wait(LONG))
        work = Thread(target=refill)
        work.start()
        assert met.wait(LONG)
        ending = Thread(target=end, args=(made.held,))
        ending.start()
        ending.join(0.2)
        assert ending.is_alive() and made.device.room, "a piece is in flight"
        go_on.set()
        ending.join(LONG)
        work.join(LONG)
        assert made.device.room == {}
        turn = made.slots.take(TOTAL, lambda: pytest.fail("a turn was not ended"))
        assert turn
        turn.end()
        assert made.arena.bytes == RING * SLOT, "slots alone are left"


def test_a_refill_that_was_given_up_before_it_has_slots_leaves_none_taken() -> None:
    with taken_over() as made:
        made.copy.use.given_up = True
        for _ in range(2):
            with pytest.raises(RolledBack, match="given up"):
                made.refill()
        made.copy.use.given_up = False
        assert made.refill().bytes == TOTAL


def test_nothing_is_refilled_ahead_from_what_is_not_pinned() -> None:
    with taken_over() as made:
        made.held.memory.release()
        made.device.spare, asked = 64 * MiB, ahead.Asked(COPY, TOTAL, begins=True)
        assert ahead.refill_ahead(made.copy, asked, LONG, lambda: False) == 0
        made.arena.keep(made.copy.segments)
        assert ahead.refill_ahead(made.copy, asked, LONG, lambda: False) == TOTAL


def test_the_measurement_of_the_link_releases_its_own_memory_and_no_segment_of_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "SAMPLE", 2 * MiB)
    with taken_over() as made:
        taken = {*made.copy.segments}
        made.held.forget_copy(COPY)
        made.device.spare, made.arena._ledger.limit = 1 << 40, 64 * MiB
        monkeypatch.setattr(made.device, "read", lambda _spans: SimpleNamespace(wait=lambda _timeout: 0.1))
        monkeypatch.setattr(made.device, "write", made.device.read)
        assert link.measure_link(cast("Any", made.device), made.arena).keys() == {link.IN, link.OUT}
        assert {*made.arena.take("llm/7", TOTAL)} == taken
        assert made.arena.bytes == sum(part.size for part in taken)


@pytest.mark.parametrize("why", ["given up", "no segment"])
def test_segments_that_are_not_taken_over_are_closed(why: str) -> None:
    with taken_over() as made:
        table, copy = made.copy.seal(ABOUT), made.held.copy(COPY + 1)
        copy.use.given_up = why == "given up"
        fds = [os.memfd_create("other") for _ in table.segments]
        with pytest.raises(RolledBack if why == "given up" else NotASegment):
            copy.reclaim(table, fds)
        for fd in fds:
            with pytest.raises(OSError):
                os.fstat(fd)
        assert (copy.segments, copy.layout) == (None, None), "its keeper can hand them over again"
