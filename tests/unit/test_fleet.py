"""Children that answer no more: others take their place after their end; no caller waits for one that cannot end."""

import os
import subprocess
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.daemon import fleet as module
from gcr.daemon.fleet import Child, Fleet
from gcr.daemon.permission import AS_OURSELVES, Acting, Caller
from gcr.engine.node import World
from gcr.errors import DeadlinePassed
from gcr.testing.machine import PATIENCE, until

LONG = 60.0


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
        super().__init__(
            acting=acting, pid=os.getpid(), channel=SimpleNamespace(closed=threading.Event(), close=self.end)
        )

    def end(self) -> None:
        self.channel.closed.set()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Helper]:
    """The image helpers that were started; `criu` among them stands for one of CRIU's."""
    made = list[Helper]()

    def start(_fleet: Fleet, acting: Any = "criu") -> Any:
        made.append(Helper(acting))
        return made[-1]

    monkeypatch.setattr(Fleet, "_new_image_helper", start)
    monkeypatch.setattr(Fleet, "_new_criu_helper", start)
    return made


def expected(fleet: Fleet, started: list[Helper], count: int) -> list[Any]:
    fleet.expect_readers(count)
    until(lambda: len(started) == count, PATIENCE, "they are started")
    until(lambda: fleet._images._living() == count, PATIENCE, "they are there")
    return [*started]


def test_helpers_that_were_started_ahead_are_handed_out_once_each(started: list[Helper]) -> None:
    fleet = Fleet()
    first, second = expected(fleet, started, 2)
    assert [fleet.image_helper() for _ in range(3)] == [first, second, started[2]]


def test_one_that_has_ended_meanwhile_is_handed_out_to_nothing(started: list[Helper]) -> None:
    fleet = Fleet()
    first, second = expected(fleet, started, 2)
    first.end()
    assert fleet.image_helper() is second


def test_another_user_gets_none_that_was_started_ahead(started: list[Helper]) -> None:
    fleet, other = Fleet(), Acting(Caller(77, 78))
    expected(fleet, started, 1)
    assert cast("Any", fleet.image_helper(other)).acting is other


def test_a_daemon_that_has_saved_no_processes_keeps_no_helpers_ready(started: list[Helper]) -> None:
    fleet = Fleet()
    fleet.image_helper()
    fleet.keep_ready(LONG)
    assert len(started) == 1


def test_after_processes_were_saved_the_helpers_of_the_next_time_are_ready(started: list[Helper]) -> None:
    fleet = Fleet()
    fleet.criu_helper()
    for _ in range(2):
        fleet.keep_ready(LONG)
    assert [each.acting for each in started] == ["criu", AS_OURSELVES, AS_OURSELVES, "criu"]
    assert [fleet.criu_helper(), fleet.image_helper(), fleet.image_helper()] == [started[3], *started[1:3]]
    started.clear()
    fleet.keep_ready(LONG)
    assert len(started) == 3


def test_helpers_that_are_ready_end_when_they_are_not_asked_for(started: list[Helper]) -> None:
    fleet = Fleet()
    (ahead,) = expected(fleet, started, 1)
    fleet.keep_ready(0.0)
    assert ahead.channel.closed.is_set()
    assert fleet.image_helper() is not ahead


@pytest.mark.parametrize(
    ("works", "awaits", "taken", "ended"),
    [
        (False, False, True, True),
        (True, False, True, False),
        (False, True, True, False),
        (False, False, False, False),
    ],
)
def test_an_idle_helper_makes_way_for_a_process_that_had_its_id(
    started: list[Helper], works: bool, awaits: bool, taken: bool, ended: bool
) -> None:
    fleet, world = Fleet(), World("amd")
    expected(fleet, started, 1)
    closed = threading.Event()
    with subprocess.Popen(["sleep", "60"]) as process:
        channel = SimpleNamespace(awaits=awaits, closed=closed, silent=False, close=process.terminate)
        fleet._controls[world] = Child(process, cast("Any", channel), cast("Any", None))
        fleet.vacate([process.pid, os.getpid()] if taken else [1], lambda asked: works and asked == world)
        assert (process.poll() is not None) == ended
        assert started[0].channel.closed.is_set() == taken
        assert fleet._images._living() == (0 if taken else 1)
        process.kill()
