"""The clock of a simulation: what is to happen, by time. Nothing sleeps, and equal times keep their order."""

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]


class Clock:
    """Times are seconds from the beginning."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Action]] = []
        self._number = count()

    def at(self, time: float, action: Action) -> None:
        """Has it happen then, or now if that is past."""
        heapq.heappush(self._due, (max(time, self.now), next(self._number), action))

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + seconds, action)

    def run(self) -> None:
        """Returns once nothing more is to happen."""
        while self._due:
            self.now, _, action = heapq.heappop(self._due)
            action()
