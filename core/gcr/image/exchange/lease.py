"""The lock of a store's packs while peers read them: none goes between a peer's first look and its last piece.

It is not the lock of readers and writers. No peer makes an image the only copy of a job, so `gcr rm` need not wait for
peers: the image's name goes at once, and its packs with a later clean-up.
"""

import fcntl
import time
from contextlib import ExitStack
from pathlib import Path
from threading import Lock

from gcr.image.disk.locking import locked, packs_locked
from gcr.image.store.mark import MARK

LEASE_S = 10.0  # after the last request of a peer; one that pulls asks several times a second
_END_S = 1.0


class Lease:
    """Holds the lock of the store's packs from a request on until none came for LEASE_S. Thread-safe."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._held: ExitStack | None = None
        self._until = 0.0
        self._taking = Lock()

    def renew(self) -> None:
        """Takes the lock if it is not held; waits while the store is cleaned up. Raises OSError."""
        with self._taking:
            self._until = time.monotonic() + LEASE_S
            if self._held is None:
                self._held = self._take()
                self._until = time.monotonic() + LEASE_S

    def look(self) -> None:
        """Lets go of the lock when its time is over."""
        if not self._taking.acquire(blocking=False):  # it is wanted just now, and may be waited for
            return
        try:
            if time.monotonic() > self._until:
                self._let_go()
        finally:
            self._taking.release()

    def end(self) -> None:
        """Lets go of the lock. A clean-up that a request waits for just now keeps nothing from ending."""
        if self._taking.acquire(timeout=_END_S):
            self._let_go()
            self._taking.release()

    def _take(self) -> ExitStack:
        with ExitStack() as stack:
            try:
                stack.enter_context(packs_locked(self._store / MARK, fcntl.LOCK_SH, None))
            except FileNotFoundError:  # a store of before there was a mark
                stack.enter_context(locked(self._store, fcntl.LOCK_SH, None))
            return stack.pop_all()

    def _let_go(self) -> None:
        if self._held:
            self._held.close()
        self._held = None
