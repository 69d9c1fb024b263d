"""Segments that a worker takes over from their keeper."""

from collections.abc import Sequence
from threading import Event, Lock, Thread

from gcr.errors import DeadlinePassed, RolledBack
from gcr.memory.arena import Arena, Segments
from gcr.memory.layout import Segment
from gcr.protocol.seqpacket import close_all


class Arriving:
    """Segments from another process, which a thread maps and pins in order, from `begin` on.

    A driver makes no device memory while it pins host memory. So a restore makes its memory first.
    """

    def __init__(self, arena: Arena, owner: str, fds: Sequence[int], sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self._arena, self._owner, self._fds = arena, owner, fds
        self._ready: list[Segment] = []
        self._events = [Event() for _ in sizes]
        self._segments: Segments | None = None
        self._error: BaseException | None = None
        self._first = Lock()
        self._over = Event()

    def begin(self) -> None:
        """Starts to map and pin. Idempotent; `wait` and `finish` begin as well."""
        if not self._first.acquire(blocking=False):
            return
        try:
            Thread(target=self._adopt, name="gcr-adopt", daemon=True).start()
        except RuntimeError as error:  # no thread is to be had
            close_all(self._fds)
            self._fail(error)

    def wait(self, index: int, timeout: float) -> Segment:
        """Returns a segment once it is pinned. Raises DeadlinePassed, RolledBack."""
        self.begin()
        if not self._events[index].wait(max(0.0, timeout)):
            raise DeadlinePassed("the arena's segments were not pinned in time")
        if self._error:
            raise self._unusable() from self._error
        return self._ready[index]

    def finish(self) -> Segments:
        """Returns all segments once they are pinned. Raises RolledBack."""
        self.begin()
        self._over.wait(120.0)
        if self._segments is None:
            raise self._unusable()
        return self._segments

    def _unusable(self) -> RolledBack:
        return RolledBack(f"the arena's segments cannot be used: {self._error}")

    def _adopt(self) -> None:
        try:
            self._segments = self._arena.adopt(self._owner, self._fds, self.sizes, self._one_ready)
            self._over.set()
        except BaseException as error:  # raised where a caller waits
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        for event in (*self._events, self._over):
            event.set()

    def _one_ready(self, segment: Segment) -> None:
        self._ready.append(segment)
        self._events[len(self._ready) - 1].set()
