"""Children that answer no more: others take their place after their end; no caller waits for one that cannot end."""

import subprocess
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.daemon import fleet as module
from gcr.daemon.fleet import Child, Fleet
from gcr.daemon.permission import Acting, Caller
from gcr.errors import DeadlinePassed
from gcr.testing.machine import PATIENCE, until


class Process:
    """`hangs`: in its driver, so that the kernel does not end it."""

    pid = 7

    def __init__(self, hangs: bool = False) -> None:
        self.hangs, self.killed = hangs, False

    def poll(self) -> int | None:
        return None if self.hangs or not self.killed else -9

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "a wait without end"
        if self.poll() is None:
            raise subprocess.TimeoutExpired("worker", timeout)
        return -9


def child(process: Process, silent: bool, answers: bool) -> Child[Any]:
    def call_json(*_words: object, **_how: object) -> tuple[dict[str, Any], list[int]]:
        if not answers:
            raise DeadlinePassed("no reply")
        return {}, []

    channel = SimpleNamespace(closed=threading.Event(), silent=silent, call_json=call_json, close=lambda: None)
    return Child(cast("Any", process), cast("Any", channel), cast("Any", None))


@pytest.mark.parametrize(("silent", "answers"), [(False, False), (True, True)])
def test_one_that_answers_serves_on(silent: bool, answers: bool) -> None:
    """A child that has answered every call is not asked."""
    process = Process()
    assert child(process, silent, answers).serves() and not process.killed


@pytest.mark.parametrize("hangs", [False, True])
def test_one_that_does_not_is_ended_and_waited_for_no_longer_than_that_takes(
    hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_S", 0.01)
    process = Process(hangs)
    assert not child(process, True, False).serves()
    assert process.killed


class Helper(SimpleNamespace):
    """An image helper of `Fleet`, by the user that it acts for."""

    def __init__(self, acting: Acting) -> None:
        super().__init__(acting=acting, channel=SimpleNamespace(closed=threading.Event(), close=self.end))

    def end(self) -> None:
        self.channel.closed.set()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Helper]:
    made = list[Helper]()

    def start(_fleet: Fleet, acting: Acting) -> Any:
        made.append(Helper(acting))
        return made[-1]

    monkeypatch.setattr(Fleet, "_new_image_helper", start)
    return made


def started_ahead(fleet: Fleet, started: list[Helper], count: int) -> list[Any]:
    fleet.start_ahead(count)
    until(lambda: len(fleet._ahead) == count, PATIENCE, "they are started")
    return [*started]


def test_helpers_that_were_started_ahead_are_handed_out_once_each(started: list[Helper]) -> None:
    fleet = Fleet()
    first, second = started_ahead(fleet, started, 2)
    assert [fleet.image_helper() for _ in range(3)] == [first, second, started[2]]


def test_one_that_has_ended_meanwhile_is_handed_out_to_nothing(started: list[Helper]) -> None:
    fleet = Fleet()
    first, second = started_ahead(fleet, started, 2)
    first.end()
    assert fleet.image_helper() is second


def test_another_user_gets_none_that_was_started_ahead(started: list[Helper]) -> None:
    fleet, other = Fleet(), Acting(Caller(77, 78))
    started_ahead(fleet, started, 1)
    assert cast("Any", fleet.image_helper(other)).acting is other


def test_those_that_no_restore_asks_for_end(started: list[Helper], monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()
    (ahead,) = started_ahead(fleet, started, 1)
    fleet.retire(0.0, lambda _world, _device: False)
    assert not ahead.channel.closed.is_set()
    monkeypatch.setattr(module, "AHEAD_S", 0.0)
    fleet.retire(0.0, lambda _world, _device: False)
    assert ahead.channel.closed.is_set()
    assert fleet.image_helper() is not ahead
