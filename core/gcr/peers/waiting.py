"""The deadlines of calls to other processes, and the receivers of their progress."""

from collections.abc import Callable
from typing import Any, Protocol

from gcr.protocol.operations.image import Done

CALL_TIMEOUT = 15.0  # seconds
BRIEF = 1.0  # seconds for a process that did not answer the last call: a program may stand still meanwhile
START_TIMEOUT = 60.0  # seconds for the start of a child on a busy machine
Progress = Callable[[dict[str, Any]], None]


class Patience(Protocol):
    """Decides how long to wait for a helper that may hang or be stopped. An exception it raises ends the wait."""

    def heard(self, now: Done) -> None:
        """Takes in the helper's progress."""
        ...

    def heard_nothing(self) -> None:
        """Takes in that the helper was silent for a moment."""
        ...
