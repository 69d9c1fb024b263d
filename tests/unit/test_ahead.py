"""Memory that a worker refills before a restore: never the only way back, and taken where its bytes are right."""

import ctypes
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from host_device import LONG, Device, look, process

from gcr.drain import DeviceMemory, DeviceRange, HandleSpec, Span
from gcr.errors import DriverError, NoRoom
from gcr.worker import ahead
from gcr.worker.ahead import Asked, refill_ahead
from gcr.worker.bounce import Slots
from gcr.worker.holding import Holding
from gcr.worker.refilling import copy_in
from gcr.worker.snapshot import SPARE_SHARE
from gcr.worker.taking import copy_out

COPY, SIZE, ALL = 7, 1 << 20, 1 << 40
IDS = (1, 2, 3)


class Roomy(Device):
    """A device with room for `free` bytes, of which drivers may need `theirs`.

    waiting: called while a copy to it is waited for
    """

    free = 8 * SIZE
    theirs = 0
    written = 0
    waiting: Callable[[], Any] = staticmethod(lambda: None)

    def memory(self) -> DeviceMemory:
        total = SPARE_SHARE * 100 * SIZE
        return DeviceMemory(total - total // SPARE_SHARE - self.free + self.theirs, total, {})

    def create(self, handles: Sequence[HandleSpec]) -> DeviceRange:
        size = sum(spec.size for spec in handles)
        self.take(size)
        made = ctypes.create_string_buffer(size)
        self.room[ctypes.addressof(made)] = made
        return DeviceRange(ctypes.addressof(made), size, {spec.id: n * SIZE for n, spec in enumerate(handles)})

    def take(self, size: int) -> None:
        if size > self.free:
            raise NoRoom("full", missing=size - self.free)
        self.free -= size

    def release(self, where: DeviceRange) -> None:
        for id in where.offsets:
            self.memory_of.pop(id, None)
        self.room.pop(where.address, None)
        self.free += where.size

    def ballast(self, size: int) -> Any:
        self.take(size)
        return SimpleNamespace(release=lambda: setattr(self, "free", self.free + size))

    def write(self, spans: Sequence[Span]) -> Any:
        for span in spans:
            ctypes.memmove(span.device, span.host, span.size)
            self.written += span.size
        return SimpleNamespace(wait=lambda _timeout: self.waiting() and 0.0, done=lambda: 0)


@contextmanager
def suspended(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Roomy, Holding, bytes]]:
    """Yields a process with three handles, all of which the host has alone, and its bytes. A piece is one handle."""
    monkeypatch.setattr(ahead, "PIECE_BYTES", SIZE)
    device = Roomy()
    for id in IDS:
        device.put(id, random.Random(id).randbytes(SIZE))
    whole = b"".join(map(device.holds, IDS))
    with process(device) as held:
        look(held.copy(COPY), device)
        copy_out(held.copy(COPY), LONG, lambda _: None)
        held.release()
        device.free = 8 * SIZE
        yield device, held, whole


def more(held: Holding, begins: bool = False, most: int = ALL) -> int:
    return refill_ahead(held.copy(COPY), Asked(COPY, most, begins), LONG, lambda: False)


def restore(device: Roomy, held: Holding, ballast: int = 0) -> tuple[int, int]:
    """Returns the bytes that were there, and those that were refilled."""
    there, before = held.create(COPY, ballast), device.written
    if there < len(IDS) * SIZE:
        copy_in(held.copy(COPY), LONG, lambda _: None, lambda _: False, Slots(held._arena, 2))
    return there, device.written - before


def found(held: Holding) -> bytes:
    places = {id: where.address + at for where in held.memory.ranges for id, at in where.offsets.items()}
    return b"".join(ctypes.string_at(places[id], SIZE) for id in IDS)


@pytest.mark.parametrize("pieces", range(4))
def test_a_restore_takes_what_there_is_and_refills_the_rest(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    with suspended(monkeypatch) as (device, held, whole):
        assert [more(held, begins=not n) for n in range(pieces)] == [SIZE] * pieces
        assert held.memory.evictable_bytes == pieces * SIZE
        assert restore(device, held, 5) == (pieces * SIZE, (len(IDS) - pieces) * SIZE)
        assert (held.memory.evict(), found(held)) == (0, whole)
        held.memory.drop_ballast()
        held.forget_copy(COPY)
        assert (held.memory.evict(), found(held)) == (0, whole)  # the program's from here on


def test_a_restore_that_is_taken_back_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with suspended(monkeypatch) as (device, held, whole):
        more(held, begins=True)
        restore(device, held, 5)
        held.memory.uncreate()
        assert (held.memory.evictable_bytes, held.memory.bytes, device.free) == (SIZE, SIZE, 7 * SIZE)
        device.free = SIZE
        with pytest.raises(NoRoom):
            held.create(COPY, 5)
        assert (held.memory.evictable_bytes, held.memory.bytes, device.free) == (SIZE, SIZE, SIZE)
        device.free = 7 * SIZE
        assert restore(device, held) == (SIZE, 2 * SIZE)
        assert found(held) == whole


def test_it_takes_no_more_than_is_allowed_and_free_and_what_is_gone_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with suspended(monkeypatch) as (device, held, whole):
        assert more(held, begins=True, most=SIZE - 1) == 0
        device.theirs = 8 * SIZE - (SIZE - 1)
        assert more(held, begins=True) == 0
        device.free, device.theirs = SIZE - 1, -8 * SIZE  # another program takes it after the look
        assert more(held, begins=True) == 0
        assert (held.memory.residence, held.memory.bytes) == (None, 0)
        device.free, device.theirs = 8 * SIZE, 0
        assert more(held, begins=True) == SIZE
        assert held.memory.evict() == SIZE
        assert (more(held), device.free) == (0, 8 * SIZE)  # the one that evicted it needs the room
        assert more(held, begins=True) == SIZE
        restore(device, held)
        assert (more(held), found(held)) == (0, whole)


def test_a_piece_that_fails_is_released_and_those_before_it_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        device.waiting = lambda: None
        raise DriverError("the copy failed")

    with suspended(monkeypatch) as (device, held, whole):
        more(held, begins=True)
        device.waiting = fail
        with pytest.raises(DriverError):
            more(held)
        assert (held.memory.evictable_bytes, device.free) == (SIZE, 7 * SIZE)
        assert restore(device, held) == (SIZE, 2 * SIZE)
        assert found(held) == whole


@pytest.mark.parametrize("taken_back", [False, True])
def test_a_restore_refills_again_what_was_under_way_when_it_began(
    monkeypatch: pytest.MonkeyPatch, taken_back: bool
) -> None:
    """Whatever becomes of the piece, it counts as refilled in no restore: not in this one, nor in the next."""

    def meanwhile() -> None:
        device.waiting = lambda: None
        done.append(restore(device, held))
        if taken_back:
            held.memory.uncreate()

    with suspended(monkeypatch) as (device, held, whole):
        done: list[tuple[int, int]] = []
        more(held, begins=True)
        device.waiting = meanwhile
        assert more(held) == 0
        assert done == [(SIZE, 2 * SIZE)]
        if taken_back:
            assert (held.memory.filled, held.memory.bytes) == ({1}, SIZE)
            assert restore(device, held) == (SIZE, 2 * SIZE)
        assert found(held) == whole


def test_an_eviction_or_the_end_of_the_process_takes_a_piece_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with suspended(monkeypatch) as (device, held, _whole):
        for end, left in ((held.memory.evict, 2), (held.forfeit, 0)):

            def meanwhile(end: Callable[[], Any] = end) -> None:
                device.waiting = lambda: None
                end()

            more(held, begins=True)
            device.waiting = meanwhile
            assert more(held) == 0
            assert (held.memory.residence, held.memory.bytes, device.free) == (None, 0, 8 * SIZE)
            assert (more(held, begins=True) + more(held)) // SIZE == left
            held.memory.evict()
