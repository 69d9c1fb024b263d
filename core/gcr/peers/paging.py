"""Conversations in pages with a process: each is bounded in rounds and in time, for any answers of its agent."""

import time

from msgspec import Struct, field

from gcr.errors import DeadlinePassed, RolledBack

IDLE_ROUNDS = 8  # without a new page; an agent that is short of something may answer a few of these


class Paging(Struct):
    """`what` names the conversation in errors; `limit`: seconds for all of it; `cursor`: where the pages begin."""

    what: str
    limit: float
    cursor: int = 0
    _idle: int = 0
    _began: float = field(default_factory=time.monotonic)

    def turn(self, last: int) -> None:
        """Counts a page up to `last`, after which there are more.

        Raises RolledBack for an agent whose pages lead nowhere, DeadlinePassed.
        """
        self._idle = 0 if last > self.cursor else self._idle + 1
        self.cursor = max(self.cursor, last)
        if self._idle >= IDLE_ROUNDS:
            raise RolledBack(f"{self.what}: the process says {IDLE_ROUNDS} times that there is more, and gives nothing")
        if time.monotonic() - self._began > self.limit:
            raise DeadlinePassed(f"{self.what} took longer than {self.limit:g} s")
