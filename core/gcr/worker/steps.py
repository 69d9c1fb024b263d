"""The steps of checkpoints and restores that are under way in a worker."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from threading import Lock

from msgspec import Struct, field

QUIET_AFTER_S = 1.0  # since the end of the last step


class Steps(Struct):
    """Counts steps, during which a program may stand still. Thread-safe."""

    _under_way: int = 0
    _last_end: float = -inf  # on time.monotonic()
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._last_end = time.monotonic()

    def busy(self) -> bool:
        """Tells whether a process is on its way to or from the device."""
        with self._lock:
            return self._under_way > 0 or time.monotonic() < self._last_end + QUIET_AFTER_S
