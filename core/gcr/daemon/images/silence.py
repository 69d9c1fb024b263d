"""A store that does not answer: its disk or its server hangs, and with it each process that looks at it.

Only an image helper looks at a store on behalf of a job, and only what needs that store waits for the helper, for as
long as the setting `store_s` says. A helper that hangs is left to itself: it ends as soon as the kernel lets it.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from gcr.api.events import ProgressEvent
from gcr.engine.node import Course
from gcr.errors import DeadlinePassed
from gcr.image.store.location import silent
from gcr.protocol.operations.operation import Done, Progress
from gcr.protocol.pending import SILENCE

WATCHED_S = 2.0  # within which a Reading has looked at the deadline, and says it better than a call that was too late


class Reading(Struct):
    """Implements Patience: how far a helper is, by bytes or by answers of the store. One that is stopped is as silent.

    Raises StoreUnusable, Interrupted, DeadlinePassed.
    """

    store: str
    course: Course
    patience: float  # seconds
    tell: Progress = lambda _now: None
    _bytes: int = 0
    _since: float = field(default_factory=time.monotonic)

    def heard(self, now: Done) -> None:
        if now.bytes != self._bytes:
            self._bytes, self._since = now.bytes, time.monotonic()
        self.heard_nothing()
        if now.total_bytes:  # else they are answers, and no bytes
            self.tell(now)

    def heard_nothing(self) -> None:
        self.course.left(self.patience)
        if time.monotonic() > self._since + self.patience:
            raise silent(self.store, self.patience)


class Unhurried(Struct):
    """Implements Patience where no caller waits: the disk may hang. But a helper that is stopped, and sends nothing for
    `patience` seconds, keeps memory from others: it is given up, once.

    Seconds of waiting are counted, not the clock: after a suspension of the whole machine no helper has been silent.
    """

    tell: Progress = lambda _now: None
    patience: float = math.inf
    give_up: Callable[[], object] = lambda: None
    _silent: float = 0.0  # seconds

    def heard(self, now: Done) -> None:
        self._silent = 0.0
        self.tell(now)

    def heard_nothing(self) -> None:
        self._silent += SILENCE
        if self._silent > self.patience:
            self.patience = math.inf
            self.give_up()


def event_of(phase: str, now: Done | None) -> ProgressEvent:
    """Returns the event of a phase, with a helper's progress once it has told any."""
    return (
        ProgressEvent(phase=phase, bytes=now.bytes, total_bytes=now.total_bytes) if now else ProgressEvent(phase=phase)
    )


@contextmanager
def answering(store: str, patience: float) -> Iterator[None]:
    """Raises StoreUnusable where a helper's answer did not come in time."""
    try:
        yield
    except DeadlinePassed as error:
        raise silent(store, patience) from error
