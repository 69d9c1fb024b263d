"""Waiting for copies, and saying meanwhile how far they are."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field

from gcr.drain import Transfer
from gcr.errors import DeadlinePassed

PROGRESS_EVERY = 0.1
Progress = Callable[[dict[str, Any]], None]


class Telling(Struct):
    """Says now and then how many bytes have moved."""

    copies: Sequence[Transfer]
    progress: Progress
    last: float = field(default_factory=time.monotonic)

    def now_and_then(self) -> None:
        now = time.monotonic()
        if now - self.last >= PROGRESS_EVERY:
            self.last = now
            self.progress({"bytes": sum(copy.done() for copy in self.copies)})


def wait_all(telling: Telling, end: float) -> None:
    """Until all are done. Raises DeadlinePassed; they stay the holding's to finish."""
    for copy in telling.copies:
        while not _ended(copy, end):
            telling.now_and_then()
        telling.now_and_then()


def _ended(copy: Transfer, end: float) -> bool:
    """After a short wait. Raises DeadlinePassed at the `end`."""
    try:
        copy.wait(min(PROGRESS_EVERY, max(0.0, end - time.monotonic())))
    except DeadlinePassed:
        if time.monotonic() >= end:
            raise
        return False
    return True


def outcome(size: int, seconds: float) -> dict[str, float]:
    return {"bytes": size, "seconds": seconds}
