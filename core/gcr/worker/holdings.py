"""The holdings of a worker: one for each process that it keeps something of."""

import time
from threading import Lock

from msgspec import Struct, field

from gcr.errors import WrongState
from gcr.memory.arena import Arena
from gcr.protocol.operations.worker import CopyName
from gcr.worker.attachment import Attachment
from gcr.worker.holding import Holding
from gcr.worker.hostcopy import HostCopy

DRIVER_TIMES = 10  # longer than it was said to take: then it is not at work any more


class Holdings(Struct):
    """The holdings by their holds. Thread-safe."""

    attachment: Attachment
    arena: Arena
    device: str
    _by_hold: dict[str, Holding] = field(default_factory=dict)
    leaves_copies: bool = False  # in the arena, for the next copies of the same processes
    _driver_s: dict[str, tuple[float, float]] = field(default_factory=dict)  # by hold: seconds, and when they began
    _lock: Lock = field(default_factory=Lock)

    def of(self, hold: str, name: str | None = None) -> Holding:
        """Returns the holding of a process, which is made where there is none. The name is for messages."""
        with self._lock:
            known = self._by_hold.get(hold)
            if known is None:
                known = self._by_hold[hold] = Holding(
                    self.attachment, self.arena, self.device, owner=hold, leaves_copies=self.leaves_copies
                )
            known.memory.name = known.memory.name if name is None else name
            return known

    def known(self, hold: str) -> Holding | None:
        """Returns the holding of a process, None where there is none; an operation that releases makes none."""
        with self._lock:
            return self._by_hold.get(hold)

    def copy(self, copy: CopyName, name: str | None = None) -> HostCopy:
        """Returns one copy of a process, which is made where there is none. The name is for messages."""
        return self.of(copy.hold, name).copy(copy.transaction)

    def known_copy(self, copy: CopyName) -> HostCopy | None:
        known = self.known(copy.hold)
        return known.known_copy(copy.transaction) if known else None

    def copies(self) -> list[HostCopy]:
        """Returns the copies of all processes."""
        with self._lock:
            return [copy for known in self._by_hold.values() for copy in known.copies]

    def resident(self) -> dict[str, tuple[int, float]]:
        """Returns, by hold, the bytes of resident memory that can be evicted, and since when it is resident.

        Memory that a restore has claimed is named with 0 bytes: it may become evictable again.
        """
        with self._lock:
            memories = {hold: known.memory for hold, known in self._by_hold.items()}
        found = {hold: (each.evictable_bytes, each.residence) for hold, each in memories.items()}
        return {hold: (size, residence.since) for hold, (size, residence) in found.items() if residence}

    def rename(self, old: str, new: str) -> Holding | None:
        """Gives a holding another name, and returns it; None without any. Raises WrongState for a taken name."""
        with self._lock:
            known = self._by_hold.get(old)
            if known is None:
                return None
            if new in self._by_hold:
                raise WrongState("memory of this process is held already")
            self._by_hold[new] = self._by_hold.pop(old)
            known.memory.owner = new
            return known

    def remove(self, hold: str) -> None:
        with self._lock:
            self._by_hold.pop(hold, None)
            self._driver_s.pop(hold, None)

    def driver_at_work(self, hold: str, seconds: float) -> None:
        """Notes that the driver brings a control state back, and how long it takes beside full queues; 0: done.

        The note ends by itself after DRIVER_TIMES as long: a daemon that dies meanwhile takes nothing back.
        """
        with self._lock:
            self._driver_s.pop(hold, None)
            if seconds > 0:
                self._driver_s[hold] = seconds, time.monotonic()

    def driver_s(self) -> float:
        """Returns the longest of these times; 0 where the driver brings nothing back."""
        with self._lock:
            now = time.monotonic()
            at_work = [each for each, began in self._driver_s.values() if now - began < DRIVER_TIMES * each]
            return max(at_work, default=0.0)

    def detach(self) -> None:
        """Gives the context back. Raises WrongState while memory is held with it."""
        with self._lock:
            holding = [name for name, known in self._by_hold.items() if known.uses_the_device]
            if holding:
                raise WrongState(f"memory of {len(holding)} processes is held with this worker's context")
            self.attachment.detach()

    def device_bytes(self) -> int:
        """Returns the bytes of device memory that all holdings have."""
        with self._lock:
            return sum(known.device_bytes for known in self._by_hold.values())
