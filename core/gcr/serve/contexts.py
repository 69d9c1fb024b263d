"""Contexts of parked models that stay on the device, so that these wake by mapping their memory alone.

They leave before a server starts, which may size itself by the free memory that it sees, and where a model that wakes
finds no room.
"""

import asyncio
import logging
from collections import defaultdict

from gcr.errors import GcrError, NoRoom
from gcr.serve.upstream import Jobs, Moved

log = logging.getLogger(__name__)


class Contexts:
    """Belongs to one event loop. A model wakes or loses its context, never both at once."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._there: list[str] = []  # the model that was parked first before the rest
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)

    def stays(self, name: str, there: bool) -> None:
        """Notes that a model is parked, and whether its context is there."""
        self._forget(name)
        if there:
            self._there.append(name)

    async def wake(self, name: str) -> Moved:
        """Wakes a parked model. Raises as `Jobs.wake`; NoRoom only where no other context could leave."""
        async with self._turns[name]:  # while its own context leaves, it waits
            there = self._forget(name)
            try:
                return await self._woken(name)
            except BaseException:
                self.stays(name, there)
                raise

    async def leave(self) -> bool:
        """Has all of them leave the device. Returns whether any did. Raises nothing."""
        left = False
        while self._there:
            name = self._there.pop(0)
            async with self._turns[name]:
                left = await self._left(name) or left
        return left

    async def _woken(self, name: str) -> Moved:
        try:
            return await self._jobs.wake(name)
        except NoRoom:
            if not await self.leave():
                raise
        return await self._jobs.wake(name)

    async def _left(self, name: str) -> bool:
        try:
            await self._jobs.leave(name)
        except GcrError as error:
            log.info("%s: its context stays on the device: %s", name, error)
            return False
        return True

    def _forget(self, name: str) -> bool:
        there = name in self._there
        if there:
            self._there.remove(name)
        return there
