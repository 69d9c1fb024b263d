"""Taking turns at what only one thread may do, where whoever works in the background lets all others go first."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Turns:
    """A lock whose background holder lets everybody else go first; with a plain one it would take every turn."""

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
