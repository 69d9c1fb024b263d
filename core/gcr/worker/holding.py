"""A worker's share of one process: its handed-over memory, and its copy in the arena."""

import logging
import time
from collections.abc import Sequence
from threading import RLock

from gcr.drain import DataDrain, Span, Transfer
from gcr.errors import RolledBack, WrongState
from gcr.memory.arena import Arena
from gcr.protocol.operations.worker import Moved
from gcr.worker.attachment import Attachment
from gcr.worker.held import HeldMemory
from gcr.worker.hostcopy import HostCopy
from gcr.worker.telling import Progress, Telling, wait_all

log = logging.getLogger("gcr.worker")


class Holding:
    """The memory of a process and its copy, which share the lock of the memory."""

    def __init__(self, attachment: Attachment, arena: Arena, device: str, owner: str = "", name: str = "") -> None:
        self.memory = HeldMemory(attachment)
        self.copy = HostCopy(self.memory, arena, device, owner)
        self.name = name  # for messages

    @property
    def lock(self) -> RLock:
        return self.memory.lock

    @property
    def drain(self) -> DataDrain:
        """Raises NoContext."""
        return self.memory.drain

    @property
    def uses_the_device(self) -> bool:
        with self.lock:
            snapshot = self.copy.snapshot
            return bool(self.memory.ranges or self.memory.ballast or (snapshot and snapshot.room))

    @property
    def device_bytes(self) -> int:
        """All device memory held here, in bytes. Takes no lock: a look does not wait for a copy."""
        room = self.copy.snapshot.room if self.copy.snapshot else None
        return self.memory.bytes + (room.size if room else 0)

    def forget(self, ids: Sequence[int]) -> None:
        with self.lock:
            self.memory.forget(ids)
            for i in ids:
                if self.copy.live:
                    self.copy.live.forget(i)

    def create(self, ballast: int) -> None:
        """Makes physical memory for all handles, in arena order, and ballast. Keeps none where it raises NoRoom."""
        with self.lock:
            if self.memory.ranges:
                raise WrongState("this memory exists already")
            offsets = self.copy.planned.offsets
            self.memory.create(sorted(offsets, key=offsets.__getitem__), ballast)

    def release(self) -> None:
        """Releases the device memory; the copy in the arena stays. Waits for transfers in flight."""
        with self.lock:
            self.memory.finish_transfers()
            self.memory.drop_ballast()
            self.copy.give_room_back()
            self.memory.release()
            if self.copy.layout is None:
                self.memory.specs.clear()

    def forget_copy(self) -> None:
        """Returns the arena's memory: the process has its bytes back, or never gave them."""
        copy, memory = self.copy, self.memory
        with self.lock, copy.reading:
            memory.finish_transfers()
            copy.give_room_back()
            self.settle()
            copy.give_arena_back()
            copy.layout = copy.live = copy.parent = copy.snapshot = None
            memory.specs = {i: memory.specs[i] for where in memory.ranges for i in where.offsets}

    def settle(self) -> None:
        """Waits for segments that are arriving; forgets the layout where they do not come."""
        with self.lock:
            try:
                if self.copy.arriving:
                    self.copy.segments = self.copy.arriving.finish()
            except RolledBack as error:
                log.warning("segments of %s did not arrive: %s", self.name, error)
                self.copy.layout = None  # the keeper can hand them over again
            self.copy.arriving = None

    def surrender(self) -> None:
        """Gives the copy to another worker: this one never writes to the same host memory again."""
        with self.lock, self.copy.reading:
            self.release()
            self.settle()
            self.copy.hand_on()

    def forfeit(self) -> None:
        with self.lock:
            self.release()
            self.forget_copy()

    def copy_in(self, deadline: float, progress: Progress) -> Moved:
        """Copies to the device, segment after segment, each as soon as it is pinned."""
        began, drain, copy = time.monotonic(), self.drain, self.copy
        with self.lock:
            size = sum(self.memory.specs[i].size for i in copy.planned.offsets)
            transfers: list[Transfer] = []
            self.memory.transfers = transfers
            groups = copy.plan_by_segment()
        telling = Telling(transfers, progress)
        for index, plan in enumerate(groups):
            segment = copy.segment(index, began + deadline - time.monotonic())
            placed = [Span(s.device, s.host + segment.address, s.size) for s in plan]
            transfers.append(drain.write(placed))
            telling.now_and_then()
        wait_all(telling, began + deadline)
        with self.lock:
            if copy.arriving:
                copy.segments, copy.arriving = copy.arriving.finish(), None
        return Moved(size, time.monotonic() - began)
