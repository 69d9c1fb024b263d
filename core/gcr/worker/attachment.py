"""A worker's hold on its device: a context while the device has room for one, else none.

Without a context the worker still keeps the arena: segments, layouts and sealed tables need no device, and the agents
of the processes copy (strategy `copyout`). A context may come later, and may be given back. Memory that the arena has
mapped is pinned when a context comes, and no longer pinned when it goes.
"""

import logging
import os
from collections.abc import Callable
from threading import Lock

from gcr.drain import DataDrain, DeviceMemory
from gcr.errors import GcrError, NoContext
from gcr.worker.guarded import prepares_hash

log = logging.getLogger("gcr.worker")

SLOW_HASH_S = 0.25  # longer than the copy beside it; a hash that also takes twice the copy's time is slow
ROOM_TO_HASH = 64 << 20  # bytes, for digests and a key; without it memory is hashed on the host


class Attachment:
    """Thread-safe. `attach` and `detach` hold the lock; a pin that goes on beside them may fail, never be forgotten."""

    def __init__(self, make: Callable[[], DataDrain]) -> None:
        self._make = make
        self._drain: DataDrain | None = None
        self._places: dict[int, int] = {}  # address -> bytes, of everything the arena has mapped
        self._lock = Lock()
        self._trying = Lock()
        self._hashes: DataDrain | None = None  # that is ready to hash by its device's own kernel
        self._hashes_slowly = False
        self._at_rest = 0  # bytes that the device counts beside other processes when the context begins

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
        """Tries to get a context and tells whether there is one. Raises errors other than NoContext."""
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
        """Gives the context back. The caller ensures that no memory is held or copied with it."""
        with self._trying, self._lock:
            drain, self._drain = self._drain, None
        if drain is not None:
            drain.close()  # registrations go with the context

    def make_ready_to_hash(self, timeout: float) -> None:
        """Has the device ready to hash memory by itself, if it can. An error is logged: nothing depends on it."""
        drain = self._drain
        if drain is None or drain is self._hashes or not prepares_hash(drain):
            return
        try:
            self._hashes = self._drain if drain.make_ready_to_hash(timeout) else None
        except GcrError as error:
            log.warning("the first hash is not prepared: %s", error)

    def hashed_beside(self, copying: float, hashing: float) -> None:
        """Notes the seconds of a copy, and of the hash of its bytes that began with it. A simulated device is slow."""
        if hashing > max(copying + SLOW_HASH_S, 2 * copying):
            self._hashes_slowly = True

    def hashes_itself(self) -> bool:
        """Tells whether a hash takes the device little time now, and no copy to the host."""
        drain = self._drain
        if drain is None or drain is not self._hashes or self._hashes_slowly:
            return False
        counted = drain.memory()
        return counted.total - counted.used >= ROOM_TO_HASH

    def beyond_rest(self, counted: DeviceMemory) -> int:
        """Returns bytes that came after the context, of the worker or of no process that the device can name."""
        return beside_others(counted) - self._at_rest

    def pin(self, address: int, size: int) -> None:
        with self._lock:
            self._places[address] = size
            drain = self._drain
        if drain is None:
            return
        try:
            drain.pin(address, size)  # several threads at once: pinning takes the time
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
    """Returns the bytes of the worker itself and of no process.

    A device counts memory for the process that made it, and for none once that process has released it.
    """
    return counted.used - sum(used for pid, used in counted.by_pid.items() if pid != os.getpid())
