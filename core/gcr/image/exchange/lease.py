"""The lock of the store while peers read from it: no pack goes between a peer's first look and its last piece."""

import asyncio
import fcntl
import time
from contextlib import ExitStack
from pathlib import Path

from gcr.image.disk.locking import locked

LEASE_S = 10.0  # after the last request of a peer; one that pulls asks several times a second
_LOOK_S = 0.5


class Lease:
    """Holds the store's lock, as any reader does, from a request on until none came for LEASE_S."""

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
