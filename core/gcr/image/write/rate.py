"""A limit on how fast something is written."""

import time
from collections.abc import Callable
from threading import Lock

from msgspec import Struct, field


class Rate(Struct):
    """A limit in bytes a second for all threads together; None: no limit."""

    bytes_per_s: float | None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _free_at: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def spend(self, nbytes: int) -> None:
        """Waits until these bytes may be written."""
        if not self.bytes_per_s:
            return
        with self._lock:
            now = self.clock()
            begin = max(now, self._free_at)
            self._free_at = begin + nbytes / self.bytes_per_s
        if begin > now:
            self.sleep(begin - now)
