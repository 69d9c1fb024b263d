"""The wait for transfers, with progress."""

import time
from collections.abc import Sequence

from msgspec import Struct, field

from gcr.drain import Transfer
from gcr.errors import DeadlinePassed
from gcr.protocol.operations.operation import Done, Progress

PROGRESS_EVERY = 0.1


class Telling(Struct):
    """Reports from time to time how many bytes have moved."""

    copies: Sequence[Transfer]
    progress: Progress
    last: float = field(default_factory=time.monotonic)

    def now_and_then(self) -> None:
        now = time.monotonic()
        if now - self.last >= PROGRESS_EVERY:
            self.last = now
            self.progress(Done(sum(copy.done() for copy in self.copies)))


def wait_all(telling: Telling, end: float) -> None:
    """Waits for all transfers. Raises DeadlinePassed; the holding still has to finish them."""
    for copy in telling.copies:
        wait_for(copy, telling, end)
        telling.now_and_then()


def wait_for(copy: Transfer, telling: Telling, end: float) -> None:
    """Waits for one transfer. Raises as `wait_all`."""
    while not _ended(copy, end):
        telling.now_and_then()


def _ended(copy: Transfer, end: float) -> bool:
    """Waits shortly and tells whether the transfer has ended. Raises DeadlinePassed at the `end`."""
    try:
        copy.wait(min(PROGRESS_EVERY, max(0.0, end - time.monotonic())))
    except DeadlinePassed:
        if time.monotonic() >= end:
            raise
        return False
    return True
