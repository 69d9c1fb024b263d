"""The child that looks at a store: Ctrl-C while it is forked is not lost, and its progress comes to the command."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.api.events import ProgressEvent
from gcr.cli import moving
from gcr.cli.asking import Asking, Line
from gcr.image.remote.transfer import Moving, Transfer
from gcr.testing.machine import alive, until

_pressed_in: str | None = None


def _press(where: str) -> None:
    """Presses Ctrl-C as a terminal would, at the interpreter's next chance."""
    if _pressed_in == where:
        os.kill(os.getpid(), signal.SIGINT)


os.register_at_fork(
    before=lambda: _press("before"),
    after_in_parent=lambda: _press("after_in_parent"),
)


@contextmanager
def pressed(where: str) -> Iterator[None]:
    global _pressed_in
    _pressed_in = where
    try:
        yield
    finally:
        _pressed_in = None


def forever(line: Line) -> None:
    while True:
        line.pulse()
        time.sleep(0.01)


@pytest.mark.parametrize("where", ["before", "after_in_parent"])
def test_an_interrupt_while_it_forks_counts(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    before, real, forked = signal.getsignal(signal.SIGINT), os.fork, list[int]()

    def fork() -> int:
        forked.append(real())
        return forked[-1]

    monkeypatch.setattr(os, "fork", fork)
    with pressed(where), pytest.raises(KeyboardInterrupt):
        Asking("the store", forever, timeout=5.0).answer()
    assert signal.getsignal(signal.SIGINT) is before
    (child,) = forked
    until(lambda: not alive(child), 20, "the child is gone")


def test_without_one_it_answers() -> None:
    assert Asking("the store", lambda _line: 7).answer() == 7


def test_progress_of_a_push_comes_from_the_child_to_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ProgressEvent] = []
    view = SimpleNamespace(update=seen.append)
    monkeypatch.setattr(moving, "progress_view", lambda _as_json: nullcontext(view))
    key = SimpleNamespace(key=lambda: None)
    options = cast("Any", SimpleNamespace(json=True, timeout=None, key=lambda: key))

    def push(transfer: Transfer) -> Any:
        transfer.tell(Moving(transfer.phase, 0, 9, 0.0, None))
        transfer.tell(Moving(transfer.phase, 3, 9, 1.5, 4.0))
        return "moved"

    assert moving._moved("push", options, Path("/nowhere"), push) == "moved"
    assert seen == [
        ProgressEvent(phase="push", bytes=0, total_bytes=9, bytes_per_s=0.0),
        ProgressEvent(phase="push", bytes=3, total_bytes=9, bytes_per_s=1.5, left_s=4.0),
    ]
