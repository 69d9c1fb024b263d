"""A worker's hold on its device: a context while one can be had, else none.

Without a context a worker keeps the arena all the same: segments, layouts and sealed tables need no device, and the
processes' own agents copy (strategy `copyout`). A context may come later, and may be given back: what the arena has
mapped by then is pinned, or unpinned, as it would have been.
"""

import logging
import os
from collections.abc import Callable
from threading import Lock

from gcr.drain import DataDrain, DeviceMemory
from gcr.errors import NoContext

log = logging.getLogger("gcr.worker")


class Attachment:
    """Thread-safe. `attach` and `detach` hold the lock; a pin that goes on beside them may fail, never be forgotten."""

    def __init__(self, make: Callable[[], DataDrain]) -> None:
        self._make = make
        self._drain: DataDrain | None = None
        self._places: dict[int, int] = {}  # address -> bytes, of everything the arena has mapped
        self._lock = Lock()
        self._trying = Lock()
        self._at_rest = 0  # what the device counts beside other processes while nobody's memory is held here

    @property
    def attached(self) -> bool:
        return self._drain is not None

    @property
    def drain(self) -> DataDrain:
        """Raises NoContext."""
        found = self._drain
        if found is None:
            raise NoContext("this worker has no context on its device")
        return found

    def attach(self) -> bool:
        """Try to have a context; whether there is one. Raises what else than NoContext keeps it from one."""
        with self._trying:
            if self._drain is not None:
                return True
            try:
                made = self._make()
            except NoContext as full:
                log.info("no context: %s", full)
                return False
            self._take(made)
            return True

    def detach(self) -> None:
        """Give the context back. The caller sees to it that nothing is held or copied with it."""
        with self._trying, self._lock:
            drain, self._drain = self._drain, None
        if drain is not None:
            drain.close()  # registrations go with the context

    def beyond_rest(self, counted: DeviceMemory) -> int:
        """Bytes that came since the context did, of ours or of no process the device can name."""
        return beside_others(counted) - self._at_rest

    def pin(self, address: int, size: int) -> None:
        with self._lock:
            self._places[address] = size
            drain = self._drain
        if drain is None:
            return
        try:
            drain.pin(address, size)  # beside others: pinning is what takes the time
        except BaseException:
            with self._lock:
                self._places.pop(address, None)
            raise

    def unpin(self, address: int) -> None:
        with self._lock:
            known = self._places.pop(address, None) is not None
            drain = self._drain
        if drain is not None and known:
            drain.unpin(address)

    def _take(self, made: DataDrain) -> None:
        at_rest = beside_others(made.memory())
        try:
            with self._lock:
                for address, size in self._places.items():
                    made.pin(address, size)
                self._drain, self._at_rest = made, at_rest
        except BaseException:
            made.close()
            raise


def beside_others(counted: DeviceMemory) -> int:
    """Ours and nobody's: memory counts for the process that made it, and for none once that one has let go of it."""
    return counted.used - sum(used for pid, used in counted.by_pid.items() if pid != os.getpid())
