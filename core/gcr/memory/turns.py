"""Turns for work that only one thread may do; background work lets all other threads go first."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Turns:
    """A lock with a background holder that yields to all other threads; of a plain lock it would take each turn."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._busy = False
        self._waiting = 0

    @contextmanager
    def next(self) -> Iterator[None]:
        with self._condition:
            self._waiting += 1
            self._condition.wait_for(lambda: not self._busy)
            self._waiting -= 1
            self._busy = True
        yield from self._hold()

    @contextmanager
    def background(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._busy and not self._waiting)
            self._busy = True
        yield from self._hold()

    def _hold(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._condition:
                self._busy = False
                self._condition.notify_all()
