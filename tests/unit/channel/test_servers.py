"""Threads that serve requests, and wait for the next one."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from gcr.protocol import servers
from gcr.protocol.servers import MOST_IDLE, Idle

LONG = 10.0


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[Idle]:
    monkeypatch.setattr(servers, "IDLE_S", 0.3)
    made = Idle()
    yield made
    until(lambda: not made._inboxes)


def until(met: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not met():
        assert time.monotonic() < end
        time.sleep(0.005)


def ran_by(idle: Idle) -> int:
    found = SimpleQueue[int]()
    idle.run(lambda: found.put(threading.get_ident()))
    return found.get(timeout=LONG)


def test_the_thread_of_one_request_serves_the_next(idle: Idle) -> None:
    first = ran_by(idle)
    until(lambda: len(idle._inboxes) == 1)
    assert ran_by(idle) == first


def test_requests_at_once_have_threads_of_their_own_and_few_of_these_stay(idle: Idle) -> None:
    together = threading.Barrier(MOST_IDLE + 3)
    for _ in range(MOST_IDLE + 2):
        idle.run(lambda: together.wait(LONG) and None)
    together.wait(LONG)
    until(lambda: len(idle._inboxes) == MOST_IDLE)
    time.sleep(0.05)
    assert len(idle._inboxes) == MOST_IDLE


def test_a_thread_that_waited_long_enough_ends_and_keeps_nothing(idle: Idle) -> None:
    class Owned:
        pass

    held, threads = Owned(), SimpleQueue[threading.Thread]()
    seen = weakref.ref(held)
    idle.run(lambda held=held: threads.put(threading.current_thread()))  # type: ignore[misc]
    del held
    thread = threads.get(timeout=LONG)
    until(lambda: seen() is None)
    assert thread.is_alive(), "it waits, and has forgotten its task"
    thread.join(LONG)
    assert not thread.is_alive() and not idle._inboxes


def test_a_child_after_a_fork_has_threads_of_its_own() -> None:
    ran_by(servers.IDLE)
    until(lambda: bool(servers.IDLE._inboxes))
    if (pid := os.fork()) == 0:
        try:
            found = SimpleQueue[int]()
            servers.IDLE.run(lambda: found.put(1))
            os._exit(found.get(timeout=2.0) - 1)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
