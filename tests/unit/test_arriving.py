"""Segments that a worker takes over: pinned once the device memory is made, and closed where nothing can pin them."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gcr.errors import RolledBack
from gcr.memory.addresses import HUGE_PAGE
from gcr.memory.memfiles import filled_memfd
from gcr.testing.machine import until
from gcr.worker.arriving import Arriving

sys.path.insert(0, str(Path(__file__).parent))

from arenas import Pins, make
from host_device import ABOUT, LONG, process
from test_residence import COPY, Owned, drained


def test_device_memory_is_made_before_the_segments_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver makes none meanwhile: on an H200 a restore of 32 GiB waited 2 s for room."""
    with drained() as (_, first), process(Owned()) as second:
        copy = first.copy(COPY)
        assert copy.segments
        table, fds = copy.seal(ABOUT), first._arena.fds(copy.segments)
        pinned, adopt = threading.Event(), second._arena.adopt

        def adopting(*args: Any) -> Any:
            pinned.set()
            return adopt(*args)

        monkeypatch.setattr(second._arena, "adopt", adopting)
        second.copy(COPY).reclaim(table, [os.dup(fd) for fd in fds])
        assert not pinned.wait(0.05)
        second.create(COPY, 0)
        until(pinned.is_set, 10, "a refill finds them pinned")
        second.settle()
        assert second.copy(COPY).seal(ABOUT) == table


@pytest.mark.parametrize("ask", [lambda it: it.wait(0, LONG), Arriving.finish])
def test_without_a_thread_they_are_closed_and_refused(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    fds = [filled_memfd(HUGE_PAGE) for _ in range(2)]
    coming = Arriving(make(Pins()), "llm/7", fds, [HUGE_PAGE] * 2)
    for _ in range(2):
        with pytest.raises(RolledBack, match="can't start new thread"):
            ask(coming)
    for fd in fds:
        with pytest.raises(OSError):
            os.fstat(fd)


def test_they_are_adopted_once() -> None:
    pins = Pins()
    arena = make(pins)  # type: ignore[no-untyped-call]
    coming = Arriving(arena, "llm/7", [filled_memfd(HUGE_PAGE) for _ in range(3)], [HUGE_PAGE] * 3)
    for _ in range(2):
        coming.begin()
    assert [coming.wait(number, LONG) for number in range(3)] == [*coming.finish()]
    assert (pins.ever, arena.bytes) == (3, 3 * HUGE_PAGE)
    arena.close()
