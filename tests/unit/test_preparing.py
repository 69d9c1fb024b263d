"""A worker's arena in the background, on real memory; pinning is a record book."""

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.errors import DriverError
from gcr.memory.arena import Arena
from gcr.protocol.operations.worker import Moved
from gcr.testing.machine import until
from gcr.worker import preparing, steps
from gcr.worker.holding import Holding
from gcr.worker.holdings import Holdings
from gcr.worker.preparing import Preparing
from gcr.worker.service import WorkerService

MIB = 1 << 20
PATIENCE = 20.0


class Pins:
    def __init__(self) -> None:
        self.now: dict[int, int] = {}
        self.fails = False

    def pin(self, address: int, size: int) -> None:
        if self.fails:
            raise DriverError("cuMemHostRegister: as asked")
        self.now[address] = size

    def unpin(self, address: int) -> None:
        del self.now[address]

    @property
    def bytes(self) -> int:
        return sum(self.now.values())


@pytest.fixture
def pins():
    return Pins()


@pytest.fixture
def busy():
    return threading.Event()


@pytest.fixture
def made(pins, busy):
    arena = Arena(pins.pin, pins.unpin, segment_bytes=4 * MIB, limit_bytes=64 * MIB, threads=2)
    yield Preparing(arena, lambda: None, busy.is_set)
    arena.close()


def comes_to(pins: Pins, nbytes: int) -> None:
    until(lambda: pins.bytes == nbytes, PATIENCE, f"{nbytes} bytes are pinned, not {pins.bytes}")


def test_a_process_s_room_is_made_and_what_is_ready_is_told(made, pins):
    made.wish("7.1", 8 * MIB)
    made.wish("8.1", 4 * MIB)
    whole = {"7.1": 8 * MIB, "8.1": 4 * MIB}
    until(lambda: made.ready() == whole or None, PATIENCE, "all is ready")  # a while after it is pinned
    assert pins.bytes == 12 * MIB


def test_what_an_ended_process_had_goes_while_another_stays(made, pins):
    for hold in ("7.1", "8.1"):
        made.wish(hold, 8 * MIB)
    comes_to(pins, 16 * MIB)
    made.arena.give_back(made.arena.take("7.1", 8 * MIB))  # it was swapped once
    made.end("7.1")
    comes_to(pins, 8 * MIB)
    assert made.ready() == {"8.1": 8 * MIB}


def test_what_was_never_used_stays_for_the_next_where_none_is_left(made, pins):
    made.wish("7.1", 16 * MIB)
    comes_to(pins, 16 * MIB)
    made.arena.give_back(made.arena.take("7.1", 4 * MIB))
    made.end("7.1")
    comes_to(pins, 12 * MIB)
    assert made.arena.free_bytes == 12 * MIB


def test_it_does_not_grow_while_bytes_are_moved(made, pins, busy):
    busy.set()
    made.wish("7.1", 8 * MIB)
    time.sleep(0.2)
    assert pins.bytes == 0
    busy.clear()
    comes_to(pins, 8 * MIB)


def test_nor_does_it_wait_for_ever(made, pins, busy, monkeypatch):
    monkeypatch.setattr(preparing, "QUIET_S", 0.1)
    busy.set()
    made.wish("7.1", 8 * MIB)
    comes_to(pins, 8 * MIB)


def test_a_failure_is_not_the_end_of_it(made, pins, caplog):
    pins.fails = True
    made.wish("7.1", 8 * MIB)
    until(lambda: "not prepared" in caplog.text, PATIENCE, "it says so")
    pins.fails = False
    made.wish("7.1", 8 * MIB)
    comes_to(pins, 8 * MIB)


COPY = {"hold": "8.1", "transaction": 9}


class Asked:
    """A request of the daemon's."""

    def __init__(self, **body: Any) -> None:
        self.body = body

    def json(self) -> Any:
        return self.body

    def take_fds(self) -> list[int]:
        return []

    def reply_json(self, _answer: Any, _fds: Any) -> None: ...


def test_steps_of_a_checkpoint_or_restore_are_what_is_not_disturbed(made, monkeypatch):
    """Not the memory that a worker keeps of a process that came back."""
    kept = Holding(cast("Any", None), made.arena, "GPU-1", "7.1")
    kept.memory.ranges.append(cast("Any", object()))
    worker = WorkerService(Holdings(cast("Any", SimpleNamespace()), made.arena, "GPU-1", {"7.1": kept}), 0.0)
    monkeypatch.setattr(worker.preparing, "before", lambda: None)
    assert not worker.steps.busy()
    worker.serve(cast("Any", Asked(op="prepare", hold="8.1", bytes=0)))
    assert not worker.steps.busy()
    worker.serve(cast("Any", Asked(op="reserve", copy=COPY, owner="llm/8", bytes=2 * MIB)))
    assert worker.steps.busy(), "the program is about to stop"
    monkeypatch.setattr(steps, "QUIET_AFTER_S", 0.0)
    assert not worker.steps.busy()
    seen = []
    monkeypatch.setattr(
        "gcr.worker.serving.copies.copy_in", lambda *_: seen.append(worker.steps.busy()) or Moved(0, 0.0)
    )
    worker.serve(cast("Any", Asked(op="refill", copy=COPY, deadline=1.0)))
    assert seen == [True] and not worker.steps.busy()
