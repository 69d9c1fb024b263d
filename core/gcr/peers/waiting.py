"""The deadlines of calls to other processes, and the patience with those that may hang."""

from typing import Protocol

from gcr.protocol.operations.operation import Done

CALL_TIMEOUT = 15.0  # seconds
MEMORY_S = 60.0  # for a call of a worker that makes, releases or compares memory
ROOM_S = 120.0  # for one that makes room in its arena, or gives its context back
BRIEF = 1.0  # seconds for a process that did not answer the last call: a program may stand still meanwhile
START_TIMEOUT = 60.0  # seconds for the start of a child on a busy machine


class Patience(Protocol):
    """Decides how long to wait for a helper that may hang or be stopped. An exception it raises ends the wait."""

    def heard(self, now: Done) -> None:
        """Takes in the helper's progress."""
        ...

    def heard_nothing(self) -> None:
        """Takes in that the helper was silent for a moment."""
        ...
