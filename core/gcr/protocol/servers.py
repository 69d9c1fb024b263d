"""Threads that serve one peer's requests: a long one blocks no other, and no peer makes more than are allowed."""

from collections import deque
from collections.abc import Callable
from math import inf
from threading import Lock, Thread

from msgspec import Struct

MAX_SERVING = 32  # requests of one peer served at once
MAX_WAITING = 256  # requests of one peer waiting for a thread; beyond it they are refused


class Bounds(Struct, frozen=True):
    """Bounds of the requests of one peer that are served at once, and of those that wait for their turn."""

    serving: int = MAX_SERVING
    waiting: float = MAX_WAITING


STRANGER = Bounds()
COORDINATOR = Bounds(serving=256, waiting=inf)
"""Of the daemon, where it asks a process that it started: it speaks for all processes of all jobs at once."""


class Servers:
    """A thread per request, as many as the bounds allow."""

    def __init__(self, name: str, bounds: Bounds = STRANGER) -> None:
        self._name = name
        self._bounds = bounds
        self._lock = Lock()
        self._running = 0
        self._backlog: deque[Callable[[], None]] = deque()

    def submit(self, task: Callable[[], None]) -> bool:
        """Returns True if it will be run. Without room for another thread it waits for one that runs."""
        with self._lock:
            if self._running >= self._bounds.serving:
                return self._wait(task)
            self._running += 1
        try:
            Thread(target=self._run, args=(task,), name=f"gcr-serve-{self._name}", daemon=True).start()
        except RuntimeError:  # no room for another thread
            with self._lock:
                self._running -= 1
                return self._running > 0 and self._wait(task)
        return True

    def _wait(self, task: Callable[[], None]) -> bool:
        """Queues a task if there is room; the caller holds the lock."""
        room = len(self._backlog) < self._bounds.waiting
        if room:
            self._backlog.append(task)
        return room

    def _run(self, task: Callable[[], None] | None) -> None:
        while task is not None:
            task()
            with self._lock:
                task = self._backlog.popleft() if self._backlog else None
                self._running -= task is None
