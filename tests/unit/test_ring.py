"""A ring, against a device in host memory: bytes pass through it unchanged, window by window."""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr.drain import DeviceRange, HandleSpec, Span
from gcr.engine.inflow import batches
from gcr.errors import DeadlinePassed, NoRoom, PeerGone, RolledBack, UsageError, WrongState
from gcr.memory.arena import Arena
from gcr.memory.layout import SealedTable
from gcr.memory.memfiles import hold_still
from gcr.worker.holding import Holding
from gcr.worker.holdings import Holdings
from gcr.worker.hostcopy import HostCopy
from gcr.worker.service import WorkerService
from gcr.worker.streaming import empty, fill, lay_out_held, make_ring

SLOT = 2 << 20
LONG = 60.0
ABOUT = {"job": "llm", "pid": 7, "start_time": 8, "transaction": 9, "ordinals": {"0": "GPU-1"}, "mappings": []}


@dataclass
class Copying:
    """A copy in flight until a caller waits for it."""

    spans: Sequence[Span]
    to_host: bool
    slow: bool = False
    waited: list[float] = field(default_factory=list)

    def wait(self, timeout: float) -> float:
        self.waited.append(timeout)
        if self.slow and timeout < 1.0:
            raise DeadlinePassed("still copying")
        for span in self.spans:
            if self.to_host:
                ctypes.memmove(span.host, span.device, span.size)
            else:
                ctypes.memmove(span.device, span.host, span.size)
        return 0.0

    def done(self) -> int:
        return 0


@dataclass
class Device:
    """Implements as much of gcr.drain.DataDrain as a ring needs."""

    slow: bool = False
    begun: list[Copying] = field(default_factory=list)

    def read(self, spans: Sequence[Span]) -> Copying:
        self.begun.append(Copying(spans, True, self.slow))
        return self.begun[-1]

    def write(self, spans: Sequence[Span]) -> Copying:
        self.begun.append(Copying(spans, False, self.slow))
        return self.begun[-1]

    def release(self, where: DeviceRange) -> None:
        """Its memory is the test's."""


def some(size: int) -> bytes:
    return os.urandom(size)


@contextmanager
def arena_of(limit: int) -> Iterator[Arena]:
    made = Arena(lambda _at, _n: None, lambda _at: None, segment_bytes=SLOT, limit_bytes=limit, threads=2)
    try:
        yield made
    finally:
        made.close()


@dataclass
class Held:
    """Allocations in ranges, as they were adopted: of each range its sizes."""

    holding: Holding
    memory: dict[int, Any] = field(default_factory=dict)

    @property
    def copy(self) -> HostCopy:
        return self.holding.copy(9)

    def put(self, *sizes: Sequence[int]) -> None:
        for row in sizes:
            whole = ctypes.create_string_buffer(some(sum(row)), sum(row))
            at, offsets = 0, {}
            for size in row:
                id = 1 + len(self.holding.memory.specs)
                offsets[id], self.holding.memory.specs[id] = at, HandleSpec(id, size)
                self.memory[id] = (ctypes.c_ubyte * size).from_buffer(whole, at)
                at += size
            self.holding.memory.ranges.append(DeviceRange(ctypes.addressof(whole), at, offsets))

    def line(self) -> bytes:
        order = sorted(self.copy.planned.offsets, key=self.copy.planned.offsets.__getitem__)
        return b"".join(bytes(self.memory[id]) for id in order)

    def slot(self, number: int, size: int) -> bytes:
        """Returns a slot as the image helper sees it: the segments behind one another."""
        assert self.copy.ring
        parts = self.copy.ring.segments.parts
        seen = b"".join(os.pread(part.fd, part.size, 0) for part in parts)
        return seen[number * self.copy.ring.slot_bytes :][:size]


@contextmanager
def held(device: Device, *sizes: Sequence[int], limit: int = 64 << 20) -> Iterator[Held]:
    with arena_of(limit) as arena:
        made = Held(Holding(cast("Any", SimpleNamespace(drain=device)), arena, "GPU-1", "llm/7"))
        made.put(*sizes)
        yield made


def windows(size: int, slot_bytes: int, count: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yields slots, each with the offset and the size of a window."""
    for number, offset in enumerate(range(0, size, slot_bytes)):
        yield number % count, (offset, min(slot_bytes, size - offset))


sizes_of_ranges = st.lists(st.lists(st.integers(1, 3 * SLOT), min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=15)
@given(
    sizes_of_ranges,
    st.integers(1, 3),
    st.sampled_from([SLOT, SLOT // 2, 3 * SLOT]),
    st.integers(1, SLOT // 2),
    st.randoms(),
)
def test_all_that_is_held_passes_through_a_ring_and_comes_back_in_any_pieces(
    sizes: list[list[int]], slots: int, slot_bytes: int, piece: int, chance: Random
) -> None:
    device = Device()
    with held(device, *sizes) as program:
        ring = make_ring(program.copy, slot_bytes, slots, slots)
        assert lay_out_held(program.copy) == sum(map(sum, sizes))
        seen = b""
        for slot, window in windows(program.copy.planned.size, slot_bytes, ring.count):
            fill(program.copy, slot, [window], LONG)
            seen += program.slot(slot, window[1])
        assert seen == program.line()
        assert not program.holding.memory.transfers.transfers  # no caller waits for them again

        back = seen
        for memory in program.memory.values():
            ctypes.memset(memory, 0xEE, len(memory))
        pieces = [window for _, window in windows(len(back), piece, 1)]
        chance.shuffle(pieces)
        for number, some in enumerate(batches(pieces, slot_bytes)):
            put_into_slot(program, number % ring.count, b"".join(back[at : at + size] for at, size in some))
            empty(program.copy, number % ring.count, some, LONG)
        assert program.line() == back


def put_into_slot(program: Held, slot: int, data: bytes) -> None:
    """Writes as the image helper does: by the segments' descriptors."""
    assert program.copy.ring
    at, done, first = slot * program.copy.ring.slot_bytes, 0, 0
    for part in program.copy.ring.segments:
        begin, end = max(at, first), min(at + len(data), first + part.size)
        if begin < end:
            done += os.pwrite(part.fd, data[begin - at : end - at], begin - first)
        first += part.size
    assert done == len(data)


def test_a_ring_is_no_larger_than_its_slots_whatever_passes_through_it() -> None:
    with held(Device(), [9 * SLOT], limit=4 * SLOT) as program:
        make_ring(program.copy, SLOT, 2, 2)
        lay_out_held(program.copy)
        for slot, window in windows(9 * SLOT, SLOT, 2):
            fill(program.copy, slot, [window], LONG)
        assert program.copy.arena.bytes == 2 * SLOT


def test_a_ring_has_as_many_slots_as_there_is_room_for() -> None:
    with held(Device(), [SLOT], limit=3 * SLOT) as program:
        assert make_ring(program.copy, SLOT, 8, 2).count == 3


def test_without_room_for_the_fewest_slots_there_is_none_and_nothing_is_taken() -> None:
    with held(Device(), [SLOT], limit=3 * SLOT) as program:
        with pytest.raises(NoRoom) as caught:
            make_ring(program.copy, SLOT, 8, 4)
        assert caught.value.missing == SLOT
        assert program.copy.ring is None and program.copy.arena.bytes == 0


def test_what_was_reserved_makes_way_for_the_ring_and_the_ring_for_what_is_reserved() -> None:
    with held(Device(), [SLOT], limit=4 * SLOT) as program:
        program.copy.reserve(4 * SLOT)
        assert make_ring(program.copy, SLOT, 4, 4).count == 4
        program.copy.reserve(4 * SLOT)
        assert program.copy.ring is None and program.copy.segments


@pytest.mark.parametrize(
    ("slot", "some"),
    [
        *((2, [(0, SLOT)]), (-1, [(0, SLOT)]), (0, [(0, SLOT + 1)]), (0, [(0, 0)]), (0, [(0, -1)])),
        *((0, []), (0, [(0, SLOT), (SLOT, 1)]), (0, [(0, SLOT), (9, -1)])),
    ],
)
def test_what_is_no_window_of_a_slot_is_refused(slot: int, some: list[tuple[int, int]]) -> None:
    device = Device()
    with held(device, [4 * SLOT]) as program:
        make_ring(program.copy, SLOT, 2, 2)
        lay_out_held(program.copy)
        with pytest.raises(UsageError):
            fill(program.copy, slot, some, LONG)
        assert not device.begun


@pytest.mark.parametrize(("offset", "size"), [(3 * SLOT + 1, SLOT), (4 * SLOT, 1), (-1, 2)])
def test_a_window_beyond_what_is_held_is_refused(offset: int, size: int) -> None:
    device = Device()
    with held(device, [4 * SLOT]) as program:
        make_ring(program.copy, SLOT, 2, 2)
        lay_out_held(program.copy)
        with pytest.raises(RolledBack):
            fill(program.copy, 0, [(offset, size)], LONG)
        assert not device.begun


def test_what_was_released_meanwhile_is_neither_filled_nor_emptied() -> None:
    with held(Device(), [SLOT]) as program:
        make_ring(program.copy, SLOT, 2, 2)
        lay_out_held(program.copy)
        fill(program.copy, 0, [(0, SLOT)], LONG)
        program.holding.release()
        for step in (fill, empty):
            with pytest.raises(RolledBack):
                step(program.copy, 0, [(0, SLOT)], LONG)


def test_without_a_ring_or_a_line_nothing_is_copied() -> None:
    with held(Device(), [SLOT]) as program:
        with pytest.raises(WrongState):
            lay_out_held(program.copy)
        make_ring(program.copy, SLOT, 2, 2)
        with pytest.raises(PeerGone):
            fill(program.copy, 0, [(0, SLOT)], LONG)
        lay_out_held(program.copy)
        program.copy.drop_ring()
        with pytest.raises(WrongState):
            fill(program.copy, 0, [(0, SLOT)], LONG)


def test_the_memory_of_a_ring_is_not_given_back_under_a_copy() -> None:
    """A copy without a waiting caller goes on writing there."""
    device = Device(slow=True)
    with held(device, [SLOT]) as program:
        make_ring(program.copy, SLOT, 2, 2)
        lay_out_held(program.copy)
        with pytest.raises(DeadlinePassed):
            fill(program.copy, 0, [(0, SLOT)], 0.0)
        (copy,) = device.begun
        program.copy.drop_ring()
        assert copy.waited[-1] > 1.0 and program.copy.arena.free_bytes == 2 * SLOT
        program.copy.drop_ring()


def test_a_ring_whose_reader_still_has_it_is_not_used_for_anything_else() -> None:
    with held(Device(), [SLOT], limit=2 * SLOT) as program:
        ring = make_ring(program.copy, SLOT, 2, 2)
        still = [hold_still(part.fd) for part in ring.segments]
        program.copy.drop_ring()
        with pytest.raises(NoRoom):
            make_ring(program.copy, SLOT, 2, 2)
        for fd in still:
            os.close(fd)
        make_ring(program.copy, SLOT, 2, 2)


@pytest.mark.parametrize("end", [lambda holding: holding.forget_copy(9), Holding.forfeit])
def test_releasing_the_copy_releases_the_ring(end: Callable[[Holding], None]) -> None:
    with held(Device(), [SLOT]) as program:
        copy = program.copy
        make_ring(copy, SLOT, 2, 2)
        end(program.holding)
        assert copy.ring is None and copy.arena.free_bytes == 2 * SLOT


class Asked:
    """A request, and what was answered."""

    def __init__(self, **body: Any) -> None:
        self.body = body
        self.answer: Any = None
        self.fds: list[int] = []

    def json(self) -> Any:
        return self.body

    def take_fds(self) -> list[int]:
        return []

    def reply_json(self, answer: Any, fds: Sequence[int]) -> None:
        self.answer, self.fds = answer, [*map(os.dup, fds)]


def test_the_daemon_has_a_ring_made_filled_sealed_and_dropped() -> None:
    device = Device()
    with held(device, [2 * SLOT + 4096]) as program:
        attachment = cast("Any", SimpleNamespace(drain=device))
        holdings = Holdings(attachment, program.copy.arena, "GPU-1", {"h": program.holding})
        service = WorkerService(holdings, 0.0)

        def ask(**body: Any) -> Asked:
            asked = Asked(copy={"hold": "h", "transaction": 9}, **body)
            service.serve(cast("Any", asked))
            return asked

        made = ask(op="make_ring", owner="llm/7", slot_bytes=SLOT, most=2, least=2, beyond=False)
        assert made.answer == {"descriptors": 2, "slots": 2}
        assert sum(os.fstat(fd).st_size for fd in made.fds) == 2 * SLOT
        assert ask(op="lay_out_held").answer == {"bytes": 2 * SLOT + 4096}
        ask(op="fill", slot=1, windows=[[SLOT, SLOT]], deadline=LONG)
        assert os.pread(made.fds[1], SLOT, 0) == program.line()[SLOT : 2 * SLOT]
        os.pwrite(made.fds[1], bytes(SLOT), 0)
        ask(op="empty", slot=1, windows=[[SLOT, SLOT]], deadline=LONG)
        assert program.line()[SLOT : 2 * SLOT] == bytes(SLOT)

        (table,) = ask(op="seal", about=ABOUT, partial=False).fds  # its bytes are in no host memory
        sealed = SealedTable.from_fd(table)
        assert not sealed.segments and sealed.devices == {"GPU-1"} and sealed.handles[0].spec.size == 2 * SLOT + 4096
        ask(op="drop_ring")
        assert program.copy.ring is None
        for fd in (*made.fds, table):
            os.close(fd)


def test_a_ring_that_is_surrendered_is_never_used_again() -> None:
    """A reader into it may hang, and go on later."""
    with held(Device(), [SLOT], limit=2 * SLOT) as program:
        copy = program.copy
        make_ring(copy, SLOT, 2, 2)
        lay_out_held(copy)
        program.holding.surrender()
        assert copy.ring is None
        assert copy.arena.bytes == 0, "nor by the same process"


def test_a_process_that_ended_has_neither_line_nor_ring() -> None:
    with held(Device(), [SLOT]) as program:
        make_ring(program.copy, SLOT, 2, 2)
        lay_out_held(program.copy)
        program.holding.forfeit()
        with pytest.raises(PeerGone, match="has ended"):
            empty(program.copy, 0, [(0, SLOT)], LONG)
