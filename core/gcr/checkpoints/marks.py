"""The instants of one save, which the manifest of its step keeps as `timings`.

    returned    `save` has returned, and the training goes on
    safe        every tensor of the state may change
    drained     all bytes are on the host
    written     the shares of all ranks are written; the step is published next

Beside them stands `held`, for how long steps of optimizers have waited for tensors to be read where they are.
"""

import time
from collections.abc import Callable, Mapping


class Marks:
    """Seconds from the making of this, which is the call of `save`, on the coordinator. Thread-safe.

    created: that call, in seconds since the epoch
    """

    def __init__(self) -> None:
        self.created, self._began = time.time(), time.monotonic()
        self._at: dict[str, float] = {}
        self._measured: dict[str, Callable[[], float]] = {}

    def mark(self, name: str) -> None:
        """Notes that it is so now; the first time counts."""
        self._at.setdefault(name, self.elapsed())

    def measure(self, name: str, seconds: Callable[[], float]) -> None:
        """Has a duration stand beside the instants; it is asked for when the manifest is written."""
        self._measured[name] = seconds

    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def seconds(self) -> Mapping[str, float]:
        return self._at | {name: seconds() for name, seconds in self._measured.items()}
