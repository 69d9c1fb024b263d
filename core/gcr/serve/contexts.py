"""Contexts of parked models that are on the device still.

The context of an idle model stays as long as its memory does, so that it wakes by mapping that alone; with `data_only`
each one stays. They leave before a server starts, which may size itself by the free memory that it sees, and where a
model that wakes finds no room. The daemon has them leave for other programs. The context of a model that was parked for
another one leaves while that one comes in: the driver saves it meanwhile.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto

from gcr.errors import GcrError, NoRoom
from gcr.serve.config import Parking
from gcr.serve.upstream import Jobs, Moved, Next

log = logging.getLogger(__name__)


class Stay(Enum):
    """The time for which the context of a parked model stays on the device."""

    NEVER = auto()
    WITH_MEMORY = auto()  # while the model's memory is there, unless another one waits for the room
    ALWAYS = auto()


def stay_of(parking: Parking) -> Stay:
    if parking.data_only is None:
        return Stay.WITH_MEMORY if parking.resident else Stay.NEVER
    return Stay.ALWAYS if parking.data_only else Stay.NEVER


class Contexts:
    """Belongs to one event loop. A model wakes or loses its context, never both at once.

    told: hears of each context that left, in seconds by phase
    """

    def __init__(self, jobs: Jobs, stay: Stay, told: Callable[[Mapping[str, float]], object]) -> None:
        self._jobs, self._stay, self._told = jobs, stay, told
        self._there: list[str] = []  # the model that was parked first before the rest
        self._leaving: dict[str, asyncio.Task[bool]] = {}
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)

    def stays(self, name: str, there: bool) -> None:
        """Notes whether the context of a model that is parked is there. It stays until its room is needed."""
        self._forget(name)
        if there:
            self._there.append(name)

    async def park(self, name: str, idle: bool, awaited: bool, then: Next | None = None) -> Moved:
        """Parks a model. idle: no other one wants its room. awaited: one that wakes does, and the context leaves after
        this returns. then: as of `Jobs.park`
        """
        later = (idle and self._stay is Stay.WITH_MEMORY) or (awaited and self._stay is not Stay.ALWAYS)
        done = await self._jobs.park(name, later, then)
        self.parked(name, done.context, done.memory, idle)
        return done

    def parked(self, name: str, there: bool, memory: bool, idle: bool = True) -> None:
        """Notes that this gcr serve, or one before, has parked a model. A context that is not to stay leaves now."""
        self.stays(name, there)
        stays = self._stay is Stay.ALWAYS or (self._stay is Stay.WITH_MEMORY and memory and idle)
        if there and not stays:
            self._follow(name)

    def seen(self, name: str, there: bool, memory: bool) -> None:
        """Notes what there is of a parked model. If its memory was evicted, its context leaves, too."""
        if not there:
            self._forget(name)
        elif self._stay is Stay.WITH_MEMORY and not memory and name in self._there and name not in self._leaving:
            self._follow(name)

    def _follow(self, name: str) -> None:
        task = self._leaving[name] = asyncio.create_task(self._left(name, memory=False))
        task.add_done_callback(lambda _: self._leaving.pop(name))

    async def settle(self) -> bool:
        """Waits for contexts that are leaving. Returns whether any has left. Raises nothing."""
        return await _settled([*self._leaving.values()])

    async def wake(self, name: str) -> Moved:
        """Wakes a parked model. Raises as `Jobs.wake`; NoRoom only where no other context could leave."""
        if name in self._leaving:
            await _settled([self._leaving[name]])
        async with self._turns[name]:  # while its own context leaves, it waits
            there = self._forget(name)
            try:
                return await self._woken(name)
            except BaseException:
                self.stays(name, there)
                raise

    async def leave(self) -> bool:
        """Has all of them leave the device, at once. Returns whether any did. Raises nothing."""
        settled = await self.settle()
        left = await asyncio.gather(*(self._left(name, memory=True) for name in [*self._there]))
        return settled or any(left)

    async def _woken(self, name: str) -> Moved:
        try:
            return await self._jobs.wake(name)
        except NoRoom:
            if not await self.leave():
                raise
        return await self._jobs.wake(name)

    async def _left(self, name: str, memory: bool) -> bool:
        async with self._turns[name]:
            if not self._forget(name):  # it has left, or its model is awake
                return False
            try:
                seconds = await self._jobs.leave(name, memory)
            except GcrError as error:
                log.info("%s: its context stays on the device: %s", name, error)
                return False
            self._told(seconds)
            return True

    def _forget(self, name: str) -> bool:
        there = name in self._there
        if there:
            self._there.remove(name)
        return there


async def _settled(leaving: Collection[asyncio.Task[bool]]) -> bool:
    if leaving:
        await asyncio.wait(leaving)
    return any(task.exception() is None and task.result() for task in leaving)
