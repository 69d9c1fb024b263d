"""Calls of one channel that wait for their answers."""

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator
from queue import Empty, SimpleQueue
from threading import Event, Lock

from msgspec import Struct, field

from gcr.errors import DeadlinePassed, PeerGone
from gcr.protocol.frames import Received
from gcr.protocol.record import BadFrame
from gcr.protocol.wire import ERROR, FrameType

SILENCE = 0.25  # seconds without a frame after which a caller that wants to know is told
MAX_PROGRESS = 256  # progress reports waiting for a slow caller; beyond it they are dropped


class Waiting(Struct):
    """A call that waits. None in its inbox: no reply will come."""

    reply: int
    progress: bool
    inbox: SimpleQueue[Received | None] = field(default_factory=SimpleQueue)

    def wants_progress(self) -> bool:
        return self.progress and self.inbox.qsize() < MAX_PROGRESS

    def next(self, deadline: float, late: str, on_silence: Callable[[], object] | None) -> Received | None:
        patience = SILENCE if on_silence else math.inf
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return self.inbox.get(timeout=min(left, patience))
            except Empty:
                if left <= patience or on_silence is None:
                    raise DeadlinePassed(late) from None
                on_silence()


class Pending(Struct):
    """The calls that wait, by the number of their request. Thread-safe. `closed` is set once no more may begin."""

    name: str
    closed: Event = field(default_factory=Event)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _waiting: dict[int, Waiting] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def begin(self, reply: int, progress: bool) -> tuple[int, Waiting]:
        """Returns the number of a new request, and its call. Raises PeerGone once closed."""
        number, waiting = next(self._numbers), Waiting(reply, progress)
        with self._lock:
            if self.closed.is_set():
                raise PeerGone(f"{self.name}: the connection is closed")
            self._waiting[number] = waiting
        return number, waiting

    @property
    def begun(self) -> bool:
        """Returns whether a call waits."""
        with self._lock:
            return bool(self._waiting)

    def end(self, number: int) -> None:
        with self._lock:
            self._waiting.pop(number, None)

    def deliver(self, frame: Received) -> None:
        """Hands a reply or a progress report to its call. Raises BadFrame for a reply to another kind of request."""
        progress = frame.type == FrameType.PROGRESS
        with self._lock:
            waiting = self._waiting.get(frame.request) if progress else self._waiting.pop(frame.request, None)
        if waiting is None or (progress and not waiting.wants_progress()):
            frame.close()  # its caller gave up, or does not want to hear it
        elif frame.type in (waiting.reply, ERROR, FrameType.PROGRESS):
            waiting.inbox.put(frame)
        else:
            waiting.inbox.put(None)
            raise BadFrame(f"reply {frame.type:#x} where {waiting.reply:#x} was due")

    def close(self) -> Collection[Waiting] | None:
        """Sets `closed`. Returns the calls that still wait, or None if it was closed before."""
        with self._lock:
            if self.closed.is_set():
                return None
            self.closed.set()
            waiting = list(self._waiting.values())
            self._waiting.clear()
        return waiting
