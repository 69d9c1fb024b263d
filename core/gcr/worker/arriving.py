"""Segments that a worker takes over from their keeper."""

from collections.abc import Sequence
from threading import Event, Thread

from gcr.errors import DeadlinePassed, RolledBack
from gcr.memory.arena import Arena, Segments
from gcr.memory.layout import Segment


class Arriving:
    """Segments from another process, which a thread maps and pins in order."""

    def __init__(self, arena: Arena, owner: str, fds: Sequence[int], sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self._ready: list[Segment] = []
        self._events = [Event() for _ in sizes]
        self._segments: Segments | None = None
        self._error: BaseException | None = None
        self._thread = Thread(target=self._adopt, args=(arena, owner, fds), name="gcr-adopt", daemon=True)
        self._thread.start()

    def wait(self, index: int, timeout: float) -> Segment:
        if not self._events[index].wait(max(0.0, timeout)):
            raise DeadlinePassed("the arena's segments were not pinned in time")
        if self._error:
            raise RolledBack(f"the arena's segments cannot be used: {self._error}") from self._error
        return self._ready[index]

    def finish(self) -> Segments:
        self._thread.join(120.0)
        if self._segments is None:
            raise RolledBack(f"the arena's segments cannot be used: {self._error}")
        return self._segments

    def _adopt(self, arena: Arena, owner: str, fds: Sequence[int]) -> None:
        try:
            self._segments = arena.adopt(owner, fds, self.sizes, self._one_ready)
        except BaseException as error:  # raised where a caller waits
            self._error = error
            for event in self._events:
                event.set()

    def _one_ready(self, segment: Segment) -> None:
        self._ready.append(segment)
        self._events[len(self._ready) - 1].set()
