"""The lock of a store's packs while peers read them: none goes between a peer's first look and its last piece.

It is not the lock of readers and writers. No peer makes an image the only copy of a job, so `gcr rm` need not wait for
peers: the image's name goes at once, and its packs with a later clean-up.
"""

import asyncio
import fcntl
import time
from contextlib import ExitStack
from pathlib import Path

from gcr.image.disk.locking import locked, packs_locked
from gcr.image.store.mark import MARK

LEASE_S = 10.0  # after the last request of a peer; one that pulls asks several times a second
_LOOK_S = 0.5


class Lease:
    """Holds the lock of the store's packs from a request on until none came for LEASE_S."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._held: ExitStack | None = None
        self._until = 0.0
        self._taking = asyncio.Lock()

    async def renew(self) -> None:
        """Takes the lock if it is not held; waits while the store is cleaned up. Raises OSError."""
        self._until = time.monotonic() + LEASE_S
        async with self._taking:
            if self._held is None:
                self._held = await asyncio.to_thread(self._take)

    def _take(self) -> ExitStack:
        with ExitStack() as stack:
            try:
                stack.enter_context(packs_locked(self._store / MARK, fcntl.LOCK_SH, None))
            except FileNotFoundError:  # a store of before there was a mark
                stack.enter_context(locked(self._store, fcntl.LOCK_SH, None))
            return stack.pop_all()

    async def run(self) -> None:
        """Lets go of the lock when its time is over, until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            async with self._taking:
                if time.monotonic() > self._until:
                    self.end()

    def end(self) -> None:
        if self._held:
            self._held.close()
        self._held = None
