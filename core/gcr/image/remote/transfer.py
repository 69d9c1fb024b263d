"""A push or a pull under way: what has moved, how long it may still take, and several pieces of work at once."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Any, TypeVar

from msgspec import Struct, field

from gcr.errors import DeadlinePassed, Interrupted

Item = TypeVar("Item")

PACKS = 4  # that move at once
PART = 8 << 20  # bytes that go with one request; S3 takes no part but the last of less than 5 MiB
PARTS = 16  # of all packs together: what is in flight is in memory
_TELL_S = 0.1


class Transfer(Struct):
    """Thread-safe. `timeout`: seconds in all, None: any. `tell` hears of progress, from one thread at a time.

    `pulse` is called, by any thread, wherever something was done.
    """

    phase: str
    timeout: float | None = None
    tell: Callable[[Mapping[str, Any]], None] = lambda record: None
    pulse: Callable[[], object] = lambda: None
    total: int = 0  # bytes that are to move
    moved: int = 0
    _began: float = field(default_factory=time.monotonic)
    _stopped: bool = False
    _lock: Lock = field(default_factory=Lock)

    def add(self, size: int) -> None:
        """So many bytes have moved."""
        with self._lock:
            self.moved += size

    def skip(self, size: int) -> None:
        """So many bytes of the total need not move."""
        with self._lock:
            self.total -= size

    def at_once(self, packs: int) -> int:
        """Requests for one of so many packs."""
        return PARTS // min(PACKS, packs)

    def check(self) -> None:
        """Called between requests. Raises DeadlinePassed; Interrupted where other work has failed."""
        if self._stopped:
            raise Interrupted("interrupted")
        self.pulse()
        if self.timeout is not None and time.monotonic() - self._began > self.timeout:
            raise self.overdue()

    def overdue(self) -> DeadlinePassed:
        return DeadlinePassed(f"{self.phase} took longer than {self.timeout:g} s; what is whole need not move again")

    def stop(self) -> None:
        """Nothing is asked for any more."""
        self._stopped = True

    def each(self, work: Callable[[Item], object], items: Iterable[Item], threads: int = PACKS) -> None:
        """All of it, in no order. The first error ends the rest, and is raised when nothing runs any more."""
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
            with self._lock:
                self._tell()

    def _tell(self) -> None:
        """The lock is held."""
        if self.total:
            rate = self.moved / max(time.monotonic() - self._began, 1e-9)
            left = {"left_s": (self.total - self.moved) / rate} if rate else {}
            known = {"bytes": self.moved, "total_bytes": self.total, "bytes_per_s": rate}
            self.tell({"phase": self.phase, **known, **left})


def _consequence(future: Future[object]) -> bool:
    """It failed only since another did."""
    return isinstance(future.exception(), Interrupted)
