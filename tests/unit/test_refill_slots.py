"""The slots of a refill: pinned host memory of the arena, which one refill has at a time."""

import time
from collections.abc import Iterator, Sequence
from threading import Event, Thread
from typing import Any

import pytest
from arenas import MiB, Pins, make
from host_device import LONG

from gcr.errors import DeadlinePassed, DriverError
from gcr.memory.arena import Arena, Segments
from gcr.memory.layout import Segment
from gcr.worker import bounce
from gcr.worker.bounce import OWNER, Slots, Turn

ALL = 1 << 40


@pytest.fixture
def pins() -> Pins:
    return Pins()


@pytest.fixture
def arena(pins: Pins) -> Iterator[Arena]:
    made: Arena = make(pins, limit=8 * MiB)  # type: ignore[no-untyped-call]
    yield made
    made.close()
    assert pins.now == {}


def nothing() -> None:
    """The slots are free."""


def test_slots_are_pinned_once_and_one_refill_has_them_at_a_time(arena: Arena, pins: Pins) -> None:
    slots = Slots(arena, 3)
    first = slots.take(ALL, nothing)
    assert first
    assert [[each.size for each in lane] for lane in first.lanes()] == [[bounce.SLOT_BYTES] * 2] * 3
    assert sum(pins.now.values()) == arena.bytes == 6 * bounce.SLOT_BYTES, "beyond the limit of 8 MiB"
    asked = Event()

    def ask() -> None:
        asked.set()
        raise DeadlinePassed("too long")

    with pytest.raises(DeadlinePassed):
        slots.take(ALL, ask)
    waiting: list[Turn | None] = []
    thread = Thread(target=lambda: waiting.append(slots.take(ALL, nothing)))
    thread.start()
    time.sleep(0.1)
    assert not waiting
    first.end()
    thread.join(LONG)
    (second,) = waiting
    assert second and {*second.segments} == {*first.segments}
    assert pins.ever == 6
    second.end(landed=False)
    third = slots.take(ALL, nothing)
    assert third and not {*third.segments} & {*second.segments}, "a copy from one may be in flight"
    third.end()


def test_where_host_memory_is_short_there_are_fewer_slots_or_none(arena: Arena, pins: Pins, monkeypatch: Any) -> None:
    room = 5 * bounce.SLOT_BYTES
    monkeypatch.setattr("gcr.memory.arena.available_host_bytes", lambda: room - sum(pins.now.values()))
    turn = Slots(arena, 7).take(ALL, nothing)
    assert turn and len(turn.lanes()) == 1
    turn.end()
    room = bounce.SLOT_BYTES
    arena.end(OWNER)
    slots = Slots(arena, 7)
    assert slots.take(ALL, nothing) is None
    assert slots.take(ALL, nothing) is None, "the turn was not kept"


@pytest.mark.parametrize(("nbytes", "threads"), [(0, 1), (1, 1), (2, 1), (3, 2), (6, 3), (7, 3)])
def test_few_bytes_need_few_slots(arena: Arena, nbytes: int, threads: int) -> None:
    turn = Slots(arena, 3).take(nbytes * bounce.SLOT_BYTES, nothing)
    assert turn and len(turn.lanes()) == threads
    turn.end()


def test_an_error_that_is_no_lack_of_memory_ends_the_turn(arena: Arena, pins: Pins) -> None:
    slots, pins.fail_after = Slots(arena, 2), 1
    for _ in range(2):
        with pytest.raises(DriverError):
            slots.take(ALL, nothing)
    pins.fail_after = None
    turn = slots.take(ALL, nothing)
    assert turn
    turn.end()


def test_a_promise_to_another_owner_takes_no_slot(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    grow, promised = arena._grow, list[Segments]()

    def grow_and_promise(*asked: Any, **how: Any) -> Sequence[Segment]:
        made = grow(*asked, **how)
        promised.append(arena.promise("llm", 2 * MiB))
        return made

    monkeypatch.setattr(arena, "_grow", grow_and_promise)
    slots = arena.take_slots(OWNER, 2, 2 * MiB)
    assert not {*promised[0]} & {*slots}
    arena.give_back(slots)
    assert not {*arena.promise("llm", 2 * MiB)} & {*slots}
