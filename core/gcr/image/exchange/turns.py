"""Turns of answers on a link: few are sent at once, the others wait in the order in which they were asked for.

So a piece arrives early and can be passed on, and not at the same time as all others. An answer that takes long, to a
slow peer, keeps no others from the link.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

AT_ONCE = 8  # a receiver that many nodes send to takes little of each
TURN_S = 2.0  # an answer that takes longer goes on beside the next one


class Turns:
    """Thread-safe."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._line = deque[object]()
        self._begun: list[float] = []  # of the turns that are taken; the oldest first

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Waits for a turn; the block may take longer than it lasts."""
        me = object()
        with self._changed:
            self._line.append(me)
            while self._line[0] is not me or self._is_full():
                self._changed.wait(self._full_for())
            self._line.popleft()
            began = time.monotonic()
            self._begun.append(began)
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._begun.remove(began)
                self._changed.notify_all()

    def _is_full(self) -> bool:
        return len(self._young()) >= AT_ONCE

    def _full_for(self) -> float | None:
        """Returns the seconds until the oldest turn is over without its end; None where none is taken."""
        young = self._young()
        return max(0.0, young[0] + TURN_S - time.monotonic()) if young else None

    def _young(self) -> list[float]:
        return [began for began in self._begun if time.monotonic() - began < TURN_S]
