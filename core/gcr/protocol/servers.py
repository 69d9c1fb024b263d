"""Threads that serve one peer's requests: a long one blocks no other, and no peer makes more than are allowed.

A few threads of the process stay for the next request, of any peer: to start one takes 0.15 ms, to wake one 0.03.
"""

import os
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread

from msgspec import Struct, field

MAX_SERVING = 32  # requests of one peer served at once
MOST_IDLE = 4  # threads of the process that wait for a request
IDLE_S = 10.0  # so long
MAX_WAITING = 256  # requests of one peer waiting for a thread; beyond it they are refused


class Bounds(Struct, frozen=True):
    """Bounds of the requests of one peer that are served at once, and of those that wait for their turn."""

    serving: int = MAX_SERVING
    waiting: float = MAX_WAITING


STRANGER = Bounds()
COORDINATOR = Bounds(serving=256, waiting=inf)
"""Of the daemon, where it asks a process that it started: it speaks for all processes of all jobs at once."""


Task = Callable[[], None]


class Idle(Struct):
    """Threads that have served a request and wait for the next one. Thread-safe."""

    _inboxes: list[SimpleQueue[Task]] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def run(self, task: Task) -> None:
        """Runs it on a thread that waits, or on a new one. Raises RuntimeError without room for another thread."""
        with self._lock:
            inbox = self._inboxes.pop() if self._inboxes else None
        if inbox:
            inbox.put(task)
            return
        inbox = SimpleQueue[Task]()
        inbox.put(task)
        Thread(target=self._serve, args=(inbox,), daemon=True).start()

    def _serve(self, inbox: SimpleQueue[Task]) -> None:
        self._run_one(inbox.get)
        while self._run_one(partial(self._next, inbox)):
            pass

    def _run_one(self, take: Callable[[], Task | None]) -> bool:
        """Runs a task, and keeps no reference to it: it may own a connection."""
        task = take()
        if task is not None:
            task()
        return task is not None

    def _next(self, inbox: SimpleQueue[Task]) -> Task | None:
        """Waits for a task. Returns None where none comes, or where other threads wait already."""
        current_thread().name = "gcr-idle"
        with self._lock:
            if len(self._inboxes) >= MOST_IDLE:
                return None
            self._inboxes.append(inbox)
        try:
            return inbox.get(timeout=IDLE_S)
        except Empty:
            with self._lock:
                if inbox in self._inboxes:
                    self._inboxes.remove(inbox)
                    return None
        return inbox.get()  # it was given one at the last moment

    def forget(self) -> None:
        """In a child after a fork, which has none of these threads."""
        self._inboxes, self._lock = [], Lock()


IDLE = Idle()
os.register_at_fork(after_in_child=IDLE.forget)


class Servers:
    """A thread per request, as many as the bounds allow."""

    def __init__(self, name: str, bounds: Bounds = STRANGER) -> None:
        self._name = name
        self._bounds = bounds
        self._lock = Lock()
        self._running = 0
        self._backlog: deque[Task] = deque()

    def submit(self, task: Task) -> bool:
        """Returns True if it will be run. Without room for another thread it waits for one that runs."""
        with self._lock:
            if self._running >= self._bounds.serving:
                return self._wait(task)
            self._running += 1
        try:
            IDLE.run(partial(self._run, task))
        except RuntimeError:  # no room for another thread
            with self._lock:
                self._running -= 1
                return self._running > 0 and self._wait(task)
        return True

    def _wait(self, task: Task) -> bool:
        """Queues a task if there is room; the caller holds the lock."""
        room = len(self._backlog) < self._bounds.waiting
        if room:
            self._backlog.append(task)
        return room

    def _run(self, task: Task | None) -> None:
        current_thread().name = f"gcr-serve-{self._name}"
        while task is not None:
            task()
            with self._lock:
                task = self._backlog.popleft() if self._backlog else None
                self._running -= task is None
