"""The device memory that there is for all models together, as far as that is known."""

import logging

from msgspec import Struct, field

from gcr import units

log = logging.getLogger(__name__)

TIGHT_S = 60.0  # what the device refused is remembered for so long; then all of its memory is counted on again


class Room(Struct):
    """Bytes; None where it is not known, and the device alone says no. Times are seconds of one monotonic clock.

    They are counts to plan with: a model that needs more by itself is tried alone.
    """

    total: int | None
    _tight: int = 0
    _tight_until: float = 0.0
    _larger: set[str] = field(default_factory=set)  # models of which the log says that they need more than there is

    def at(self, now: float) -> int | None:
        """Returns the bytes to count on."""
        return self._tight if now < self._tight_until else self.total

    def found(self, nbytes: int, now: float) -> None:
        """Notes that a device had no more than this."""
        self._tight, self._tight_until = nbytes, now + TIGHT_S

    def exceeded(self, nbytes: int, now: float) -> bool:
        """Returns whether a model of this size needs more than there is for all of them."""
        room = self.at(now)
        return room is not None and nbytes > room

    def compared(self, name: str, nbytes: int) -> None:
        """Has the log say, once for each model, that it needs more than there is for all of them."""
        if self.total is None or nbytes <= self.total or name in self._larger:
            return
        self._larger.add(name)
        text = "%s: it needs %s, more than the %s for all models (`memory`): it is served alone"
        log.warning(text, name, units.size(nbytes), units.size(self.total))

    def said(self, nbytes: int | None, now: float) -> str:
        """Returns the end of a message: how much a model needs, and how much there is; empty if that is not known."""
        room = self.at(now)
        if nbytes is None or room is None:
            return ""
        return f" (it needs {units.size(nbytes)}; all models together have {units.size(room)})"
