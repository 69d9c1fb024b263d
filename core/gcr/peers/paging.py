"""Conversations in pages with an agent, each bounded in rounds and in time for any answers of the agent."""

import time

from msgspec import Struct, field

from gcr.errors import DeadlinePassed, RolledBack

IDLE_ROUNDS = 8  # without progress; an agent that is short of resources may answer a few of these


class Paging(Struct):
    """One conversation. `what`: its name in errors; `limit`: seconds for all of it; `cursor`: the last id that came."""

    what: str
    limit: float
    cursor: int = 0
    _idle: int = 0
    _began: float = field(default_factory=time.monotonic)

    def turn(self, last: int) -> None:
        """Counts a page that ends with the id `last`, and that is not the last page.

        Raises RolledBack after IDLE_ROUNDS pages without progress, DeadlinePassed.
        """
        self._idle = 0 if last > self.cursor else self._idle + 1
        self.cursor = max(self.cursor, last)
        if self._idle >= IDLE_ROUNDS:
            raise RolledBack(f"{self.what}: the process says {IDLE_ROUNDS} times that there is more, and gives nothing")
        if time.monotonic() - self._began > self.limit:
            raise DeadlinePassed(f"{self.what} took longer than {self.limit:g} s")
