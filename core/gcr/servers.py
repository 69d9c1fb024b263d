"""Threads that serve one peer's requests: a long one blocks no other, and no peer makes more than are allowed."""

from collections import deque
from collections.abc import Callable
from threading import Lock, Thread

MAX_SERVING = 32  # requests of one peer served at once
MAX_WAITING = 256  # requests of one peer waiting for a thread; beyond it they are refused


class Servers:
    """A thread per request, at most MAX_SERVING of them; up to MAX_WAITING more wait their turn."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._running = 0
        self._backlog: deque[Callable[[], None]] = deque()

    def submit(self, task: Callable[[], None]) -> bool:
        """Whether it will be run: there is room for so many, and in the process for so many threads."""
        with self._lock:
            if self._running >= MAX_SERVING:
                room = len(self._backlog) < MAX_WAITING
                if room:
                    self._backlog.append(task)
                return room
            self._running += 1
        try:
            Thread(target=self._run, args=(task,), name=f"gcr-serve-{self._name}", daemon=True).start()
        except RuntimeError:  # no room for another thread
            with self._lock:
                self._running -= 1
            return False
        return True

    def _run(self, task: Callable[[], None] | None) -> None:
        while task is not None:
            task()
            with self._lock:
                task = self._backlog.popleft() if self._backlog else None
                self._running -= task is None
