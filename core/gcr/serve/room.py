"""The device memory that there is for all models together, as far as that is known."""

from msgspec import Struct

TIGHT_S = 60.0  # what the device refused is remembered for so long; then all of its memory is counted on again


class Room(Struct):
    """Bytes; None where it is not known, and the device alone says no. Times are seconds of one monotonic clock."""

    total: int | None
    _tight: int = 0
    _tight_until: float = 0.0

    def at(self, now: float) -> int | None:
        """Returns the bytes to count on."""
        return self._tight if now < self._tight_until else self.total

    def found(self, nbytes: int, now: float) -> None:
        """Notes that a device had no more than this."""
        self._tight, self._tight_until = nbytes, now + TIGHT_S
