"""Ctrl-C while a command forks the child that looks at a store: it is not lost, and no child is left behind."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gcr.cli.asking import Asking, Line
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
    until(lambda: not alive(child), 5.0, "the child is gone")


def test_without_one_it_answers() -> None:
    assert Asking("the store", lambda _line: 7).answer() == 7
