"""A push or pull under way: its progress, its deadline, and its parallel work."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import TypeVar

from msgspec import Struct, field

from gcr.errors import DeadlinePassed, Interrupted

Item = TypeVar("Item")

PACKS = 4  # that move at once
PART = 8 << 20  # bytes that go with one request; S3 takes no part but the last of less than 5 MiB
PARTS = 16  # in flight, of all packs together: they are in memory
_TELL_S = 0.1


class Moving(Struct, frozen=True):
    """The progress of a push or pull: bytes so far and in all. `left_s`: seconds, None where nothing has moved yet."""

    phase: str
    bytes: int
    total_bytes: int
    bytes_per_s: float
    left_s: float | None


class Transfer(Struct):
    """A push or pull. Thread-safe. `timeout`: seconds for all of it; None: no limit.

    `tell` is called with the progress, by one thread at a time; `pulse` by any thread that has got on.
    """

    phase: str
    timeout: float | None = None
    tell: Callable[[Moving], object] = lambda now: None
    pulse: Callable[[], object] = lambda: None
    total: int = 0  # bytes that are to move
    moved: int = 0
    _began: float = field(default_factory=time.monotonic)
    _stopped: bool = False
    _lock: Lock = field(default_factory=Lock)

    def add(self, size: int) -> None:
        """Counts bytes that have moved."""
        with self._lock:
            self.moved += size

    @property
    def left(self) -> int:
        """Returns the bytes that have still to move."""
        with self._lock:
            return max(0, self.total - self.moved)

    def skip(self, size: int) -> None:
        """Takes bytes that need not move off the total."""
        with self._lock:
            self.total -= size

    def at_once(self, packs: int) -> int:
        """Returns how many requests one of so many packs may have in flight."""
        return PARTS // min(PACKS, packs)

    def check(self) -> None:
        """Raises DeadlinePassed; Interrupted if other work has failed. It is called between requests."""
        if self._stopped:
            raise Interrupted("interrupted")
        self.pulse()
        self.check_deadline()

    def check_deadline(self) -> None:
        """Raises DeadlinePassed."""
        if self.timeout is not None and time.monotonic() - self._began > self.timeout:
            raise self.overdue()

    def overdue(self) -> DeadlinePassed:
        return DeadlinePassed(f"{self.phase} took longer than {self.timeout:g} s; what is whole need not move again")

    def stop(self) -> None:
        """Makes `check` raise Interrupted from now on."""
        self._stopped = True

    def each(self, work: Callable[[Item], object], items: Iterable[Item], threads: int = PACKS) -> None:
        """Does the work for all items, in any order. The first error ends the rest; it is raised when no work runs."""
        with ThreadPoolExecutor(threads, "gcr-transfer") as pool:
            try:
                self._wait({pool.submit(work, item) for item in items})
            except BaseException:
                self.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _wait(self, pending: set[Future[object]]) -> None:
        while pending:
            done, pending = wait(pending, _TELL_S, FIRST_EXCEPTION)
            for each in sorted(done, key=_consequence):
                each.result()
            self.report()

    def report(self) -> None:
        """Tells the progress."""
        with self._lock:
            if self.total:
                rate = self.moved / max(time.monotonic() - self._began, 1e-9)
                left = (self.total - self.moved) / rate if rate else None
                self.tell(Moving(self.phase, self.moved, self.total, rate, left))


def _consequence(future: Future[object]) -> bool:
    """Returns whether work failed only because other work did."""
    return isinstance(future.exception(), Interrupted)
