"""The growth of a worker's arena in the background, as large as its living processes want it.

The hold names a process's part of the arena; no later process has the same.
"""

import logging
import time
from collections.abc import Callable
from threading import Lock, Thread

from msgspec import Struct, field

from gcr.errors import GcrError
from gcr.memory.arena import Arena

log = logging.getLogger("gcr.worker")

QUIET_S = 10.0  # the longest wait for the end of a transaction
LOOK_S = 0.02


class Preparing(Struct):
    """The wishes of the processes, and the thread that fulfils them. Thread-safe.

    `before` is called ahead of each growth, on the same thread. `busy` tells whether bytes are being moved.

    A driver pins host memory and copies in turns, so the arena does not grow while a program may be standing still.
    """

    arena: Arena
    before: Callable[[], None]
    busy: Callable[[], bool]
    _wishes: dict[str, int] = field(default_factory=dict)  # bytes by hold
    _ended: list[str] = field(default_factory=list)  # holds
    _working: bool = False
    _due: bool = False
    _lock: Lock = field(default_factory=Lock)

    def wish(self, hold: str, nbytes: int) -> None:
        """Grows the arena until all processes that wished can leave the device at once."""
        with self._lock:
            self._wishes[hold] = nbytes
        self._begin()

    def end(self, hold: str) -> None:
        """Releases memory that only this process could use; it has ended."""
        with self._lock:
            self._wishes.pop(hold, None)
            self._ended.append(hold)
        self._begin()

    def forget(self, hold: str) -> None:
        """Forgets the wish of a process that another worker takes over."""
        with self._lock:
            self._wishes.pop(hold, None)

    def wishes(self) -> dict[str, int]:
        """Returns bytes by hold."""
        with self._lock:
            return dict(self._wishes)

    def ready(self) -> dict[str, int]:
        """Returns the bytes of each process's wish that are filled and pinned, by hold."""
        return self.arena.ready(self.wishes())

    def _begin(self) -> None:
        with self._lock:
            self._due = True
            started, self._working = self._working, True
        if not started:
            Thread(target=self._work, name="gcr-arena", daemon=True).start()

    def _work(self) -> None:
        while self._more():
            try:
                self._give_back()
                self._prepare()
            except GcrError as error:
                log.warning("arena not prepared: %s", error)
            except Exception:
                log.exception("arena not prepared")

    def _more(self) -> bool:
        with self._lock:
            self._working, self._due = self._due, False
            return self._working

    def _give_back(self) -> None:
        """Releases the memory of ended processes, and fresh memory that no other process wishes.

        Fresh memory stays where no process is left: the next one may want it, or the worker ends.
        """
        with self._lock:
            ended, self._ended = self._ended, []
        for hold in ended:
            self.arena.end(hold)
        if ended and self.wishes():
            self.arena.give_up_spare(self.wishes)

    def _prepare(self) -> None:
        if not self.wishes():
            return
        self.before()
        began, had = time.monotonic(), self.arena.pinned_bytes
        self.arena.prepare(self.wishes, self._await_quiet)
        if self.arena.pinned_bytes > had:
            log.info("arena of %d bytes pinned in %.2f s", self.arena.pinned_bytes, time.monotonic() - began)

    def _await_quiet(self) -> None:
        end = time.monotonic() + QUIET_S
        while self.busy() and time.monotonic() < end:
            time.sleep(LOOK_S)
