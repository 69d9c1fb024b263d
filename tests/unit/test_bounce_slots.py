"""The refill of memory that is not pinned: any bytes by any threads, and each way in which it ends early."""

import ctypes
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from threading import Barrier, Event, Lock, Thread
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from host_device import LONG
from hypothesis import given
from hypothesis import strategies as st

from gcr.drain import Lane, Span
from gcr.errors import DeadlinePassed, DriverError, RolledBack
from gcr.memory.arena import Arena, Segments
from gcr.memory.layout import Segment
from gcr.vmm.drain import VmmDrain
from gcr.worker import bounce
from gcr.worker.bounce import OWNER, Bounced, OpenLane, Queue, Transfers, Turn, open_lane

SLOT = 64
Write = Callable[[Sequence[Span]], Any]


class Late:
    """A transfer that moves its bytes when it is waited for, as late as a device may."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans, self.ended = spans, False

    def wait(self, _timeout: float) -> float:
        for span in () if self.ended else self.spans:
            ctypes.memmove(span.device, span.host, span.size)
        self.ended = True
        return 0.0

    def done(self) -> int:
        return 0


class Failed(Late):
    def wait(self, _timeout: float) -> float:
        raise DriverError("the device is lost")


def by_transfers(write: Write = Late) -> OpenLane:
    """Opens lanes of a drain that has none of its own."""
    return lambda _slots: Transfers(cast("Any", SimpleNamespace(write=write)))


class Stream:
    """A stream that moves its bytes when one of its events is waited for. An event: the copies before it.

    hosts: addresses of copies in flight, of all streams · most: of these at once
    """

    hosts: "list[int]" = []  # noqa: RUF012
    most = 0

    def __init__(self) -> None:
        self.queued: list[tuple[int, int, int]] = []
        self.moved, self.ended = 0, False

    def host_to_device(self, device: int, host: int, size: int) -> None:
        assert host not in Stream.hosts, "a copy from this slot is in flight"
        Stream.hosts.append(host)
        Stream.most = max(Stream.most, len(Stream.hosts))
        self.queued.append((device, host, size))

    device_to_host = device_to_device = host_to_device

    def mark(self, *, timed: bool) -> list[int]:
        assert not timed
        return [len(self.queued)]

    def mark_again(self, event: list[int]) -> None:
        event[:] = [len(self.queued)]

    def wait_for(self, event: list[int]) -> None:
        for device, host, size in self.queued[self.moved : event[0]]:
            ctypes.memmove(device, host, size)
            Stream.hosts.remove(host)
            self.moved += 1

    def passed(self, event: list[int]) -> bool:
        return self.moved >= event[0]

    def seconds(self, _first: list[int], _last: list[int]) -> float:
        return 0.0

    def forget(self, event: list[int]) -> None:
        assert self.passed(event)

    def idle(self) -> bool:
        self.wait_for([len(self.queued)])
        return True

    def close(self) -> None:
        self.ended = True


def by_streams() -> OpenLane:
    """Opens lanes on streams."""
    Stream.hosts, Stream.most = [], 0
    drain = VmmDrain(cast("Any", SimpleNamespace(enter=lambda: None, stream=Stream)))
    return lambda slots: open_lane(cast("Any", drain), slots)


class Shelf:
    """Stands for the arena: the slots that were given back."""

    def __init__(self) -> None:
        self.back: list[Segments] = []

    def give_back(self, slots: Segments) -> None:
        self.back.append(slots)


@contextmanager
def turn_of(threads: int) -> Iterator[tuple[Turn, Shelf]]:
    """Yields a turn with slots of SLOT bytes for so many threads."""
    memory, shelf, lock = ctypes.create_string_buffer(2 * threads * SLOT), Shelf(), Lock()
    parts = tuple(Segment(-1, ctypes.addressof(memory) + at * SLOT, SLOT) for at in range(2 * threads))
    lock.acquire()
    with patch.object(bounce, "SLOT_BYTES", SLOT):
        yield Turn(cast("Arena", shelf), Segments(OWNER, parts), lock), shelf
    del memory


@contextmanager
def file_of(data: bytes) -> Iterator[Segment]:
    fd = os.memfd_create("segment")
    os.write(fd, data)
    yield Segment(fd, 0, len(data))
    os.close(fd)


def through(
    turn: Turn,
    plan: Sequence[tuple[Segment, Sequence[Span]]],
    lanes: OpenLane | None = None,
    given_up: Callable[[], bool] = lambda: False,
    paced: Callable[[], bool] = lambda: False,
) -> Bounced:
    return Bounced(Queue.of(plan, given_up), turn, lanes or by_transfers(), paced)


parts = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300), st.integers(1, 5 * SLOT)), max_size=12)


@pytest.mark.parametrize("lanes", [by_transfers, by_streams])
@given(parts, st.integers(1, 5), st.randoms(), st.booleans())
def test_every_byte_of_any_copies_arrives_by_any_number_of_threads(
    lanes: Callable[[], OpenLane], wanted: list[tuple[int, int, int]], threads: int, rng: random.Random, paced: bool
) -> None:
    """wanted: of each copy its segment, the offset there, and its size"""
    data = [rng.randbytes(300 + 5 * SLOT) for _ in range(4)]
    device = ctypes.create_string_buffer(sum(size for *_, size in wanted) + 1)
    plan: list[list[Span]] = [[], [], [], []]
    at = 0
    for number, offset, size in wanted:
        plan[number].append(Span(ctypes.addressof(device) + at, offset, size))
        at += size
    with ExitStack() as files, turn_of(threads) as (turn, shelf):
        segments = [files.enter_context(file_of(each)) for each in data]
        copy = through(turn, [*zip(segments, plan, strict=True)], lanes(), paced=lambda: paced)
        copy.wait(LONG)
        copy.check()
        assert (copy.done(), shelf.back, turn.lock.locked()) == (at, [turn.segments], False)
    assert device.raw[:at] == b"".join(data[number][offset : offset + size] for number, offset, size in wanted)


@contextmanager
def one_copy(slots: int, threads: int = 2) -> Iterator[tuple[Turn, Shelf, list[tuple[Segment, list[Span]]], bytes]]:
    """Yields a turn, and a copy of so many slots' bytes; the buffer of the device is kept by the plan's address."""
    data = random.Random(slots).randbytes(slots * SLOT)
    device = ctypes.create_string_buffer(len(data))
    with file_of(data) as segment, turn_of(threads) as (turn, shelf):
        yield turn, shelf, [(segment, [Span(ctypes.addressof(device), 0, len(data))])], data
    del device


def ends(copy: Bounced, error: type[Exception], text: str) -> None:
    copy.wait(LONG)
    for _ in range(2):
        with pytest.raises(error, match=text):
            copy.check()


def test_a_segment_that_ends_early_or_cannot_be_read_ends_the_copy() -> None:
    with one_copy(5) as (turn, shelf, plan, _):
        os.ftruncate(plan[0][0].fd, 4 * SLOT + 5)
        ends(through(turn, plan), RolledBack, f"ends at byte {4 * SLOT + 5}")
        assert (shelf.back, turn.lock.locked()) == ([turn.segments], False)
    with one_copy(5) as (turn, shelf, plan, _):
        ends(through(turn, [(Segment(-1, 0, 5 * SLOT), plan[0][1])]), RolledBack, "cannot be read")
        assert shelf.back == [turn.segments]


@pytest.mark.parametrize("where", ["queued", "waited for"])
def test_a_copy_of_the_device_that_fails_ends_it_and_its_slots_serve_again_only_if_nothing_is_in_flight(
    where: str,
) -> None:
    begun: list[Late] = []

    def write(spans: Sequence[Span]) -> Late:
        if len(begun) == 3 and where == "queued":
            raise DriverError("the device is lost")
        begun.append((Failed if len(begun) == 3 else Late)(spans))
        return begun[-1]

    with one_copy(40, threads=1) as (turn, shelf, plan, _):
        copy = through(turn, plan, by_transfers(write))
        ends(copy, DriverError, "is lost")
        assert copy.done() < 40 * SLOT
        assert all(each.ended for each in begun if not isinstance(each, Failed)), "a copy from a slot is in flight"
        assert shelf.back == ([turn.segments] if where == "queued" else [])
        assert not turn.lock.locked()


@pytest.mark.parametrize("how", ["cancelled", "given up"])
def test_a_copy_ends_between_pieces_once_it_is_not_wanted(how: str) -> None:
    unwanted, met, go_on = Event(), Event(), Event()

    def write(spans: Sequence[Span]) -> Late:
        met.set()
        assert go_on.wait(LONG)
        return Late(spans)

    with one_copy(40) as (turn, shelf, plan, _):
        copy = through(turn, plan, by_transfers(write), unwanted.is_set if how == "given up" else lambda: False)
        assert met.wait(LONG)
        with pytest.raises(DeadlinePassed):
            copy.wait(0.0)
        copy.cancel() if how == "cancelled" else unwanted.set()
        go_on.set()
        ends(copy, RolledBack, "given up meanwhile")
        assert 0 < copy.done() <= 4 * SLOT
        assert (shelf.back, turn.lock.locked()) == ([turn.segments], False)


@pytest.mark.parametrize(("most", "threads"), [(1, 3), (2, 3), (4, 3)])
def test_while_it_is_paced_few_copies_of_all_threads_are_in_flight(most: int, threads: int) -> None:
    waiting = Barrier(min(most, threads))

    class Meeting(Late):
        """Ends once as many are in flight as may be."""

        flying, seen = set[int](), set[int]()

        def __init__(self, spans: Sequence[Span]) -> None:
            super().__init__(spans)
            self.flying.add(id(self))
            self.seen.add(len(self.flying))

        def wait(self, timeout: float) -> float:
            waiting.wait(LONG)
            self.flying.discard(id(self))
            return super().wait(timeout)

    with one_copy(12 * min(most, threads), threads) as (turn, _, plan, data):
        with patch.object(bounce, "PACED_BYTES", most * SLOT):
            copy = through(turn, plan, by_transfers(Meeting), paced=lambda: True)
        copy.wait(LONG)
        copy.check()
        assert max(Meeting.seen) == min(most, threads)
        assert ctypes.string_at(plan[0][1][0].device, len(data)) == data


def test_a_lane_that_cannot_be_opened_ends_the_copy() -> None:
    def none(_slots: int) -> Lane:
        raise DriverError("no stream")

    with one_copy(5) as (turn, shelf, plan, _):
        ends(through(turn, plan, none), DriverError, "no stream")
        assert (shelf.back, turn.lock.locked()) == ([turn.segments], False)


@given(st.lists(st.integers(0, 5 * SLOT), max_size=6))
def test_pieces_are_the_copies_in_their_order_each_as_large_as_a_slot_or_the_rest(sizes: list[int]) -> None:
    starts = [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    spans = [Span(5000 + at, 100 + at, end - at) for at, end in pairwise(starts)]
    with patch.object(bounce, "SLOT_BYTES", SLOT):
        queue = Queue.of([(Segment(3, 0, 0), spans[:2]), (Segment(4, 0, 0), spans[2:])], lambda: False)
    found = [*iter(queue.next, None)]
    at = 0
    for fd, host, device, size in found:
        assert (host, device, 0 < size <= SLOT) == (100 + at, 5000 + at, True)
        assert fd == (3 if at < sum(sizes[:2]) else 4)
        at += size
    assert at == queue.size == sum(sizes)
    assert len(found) == queue.pieces == sum(-(-size // SLOT) for size in sizes)
    assert queue.next() is None


def starting(most: int) -> Callable[[Thread], None]:
    start, begun = Thread.start, list[Thread]()

    def some(thread: Thread) -> None:
        if len(begun) >= most:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    return some


def test_where_few_threads_are_to_be_had_these_copy_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", starting(2))
    with one_copy(40, threads=5) as (turn, shelf, plan, data):
        copy = through(turn, plan)
        copy.wait(LONG)
        copy.check()
        assert ctypes.string_at(plan[0][1][0].device, len(data)) == data
        assert shelf.back == [turn.segments]
    monkeypatch.setattr(threading.Thread, "start", starting(0))
    with one_copy(40) as (turn, shelf, plan, _):
        with pytest.raises(RolledBack, match="can't start new thread"):
            through(turn, plan)
        assert turn.lock.locked() and not shelf.back, "the turn is the caller's still"
