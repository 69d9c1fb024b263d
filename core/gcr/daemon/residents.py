"""Resident memory of suspended jobs, and of those that are on their way here: what is there, and its eviction.

The workers have the books (worker/residence.py), since each may end at any time. The daemon keeps a mark for each
device where a worker may have such memory: agents that find no room there ask for it (occupied.py).
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock

from msgspec import Struct, field

from gcr.daemon.coming import AllComing
from gcr.daemon.fleet import Fleet
from gcr.daemon.occupied import Occupied
from gcr.engine.side_by_side import side_by_side
from gcr.errors import GcrError
from gcr.peers.worker import WorkerPeer
from gcr.protocol.operations.worker import CopyName

log = logging.getLogger("gcr.daemon")


class Resident(Struct, frozen=True):
    """Memory of one process on one device. `bytes`: those that can be evicted; `since`: as of the worker's books."""

    worker: WorkerPeer
    hold: str
    bytes: int
    since: float


class Residents(Struct):
    """The resident memory that the workers of a fleet have. Thread-safe."""

    fleet: Fleet
    occupied: Occupied
    evicted: Callable[[str], object]  # gets the hold of a process after its memory was evicted
    arriving: AllComing = field(default_factory=AllComing)
    _marks: dict[str, ExitStack] = field(default_factory=dict)  # by device
    _begun: int = 0  # calls of `stay` so far
    _ended: int = 0
    _lock: Lock = field(default_factory=Lock)

    def stay(self, worker: WorkerPeer, copy: CopyName) -> int:
        """Makes memory that a worker holds resident. Returns its bytes. Raises WrongState, NoRoom, PeerGone."""
        with self.coming(worker.device):
            return worker.handles.stay(copy)

    @contextmanager
    def coming(self, device: str) -> Iterator[None]:
        """Lets memory become resident there within the block. Raises NoRoom."""
        with self._lock:
            self._mark(device)  # before there is any: no agent is told that there is no room because of it
            self._begun += 1
        try:
            yield
        finally:
            with self._lock:
                self._ended += 1

    def may_be_on(self, device: str) -> bool:
        """Tells whether there may be some on a device, without a question to its worker."""
        return device in self._marks or self.arriving.may_be_on(device)

    def all(self) -> Sequence[Resident]:
        """Returns what can be evicted, the memory that became resident first before the rest."""
        return sorted((one for one in self._look() if one.bytes), key=lambda one: one.since)

    def make_way(self, device: str, nbytes: int, beside: Collection[str] = ()) -> int:
        """Evicts memory on a device until `nbytes` are released: first that of the job that was suspended first.

        Returns the released bytes. Raises nothing. beside: holds of processes that keep their memory
        """
        released = 0
        for one in self._candidates(device, beside):
            if released >= nbytes:
                break
            released += self._make_way_of(one)
        return released

    def free(self, devices: Collection[str]) -> None:
        """Evicts all of it on these devices. Raises nothing."""
        self.arriving.free(devices)
        side_by_side(partial(self._make_way_of, one) for one in self.all() if one.worker.device in devices)

    def free_all(self) -> None:
        """Evicts all of it. Raises nothing."""
        self.arriving.free_all()
        self.free({*self._marks})

    def keep_spare(self) -> None:
        """Evicts what takes the room that is left to drivers, which ask for none. Raises nothing."""
        for worker in {one.worker.device: one.worker for one in self.all()}.values():
            try:
                short = -worker.spare()
            except GcrError as error:
                log.warning("device %s does not say how much is free: %s", worker.device, error)
                continue
            if short > 0:
                log.info("device %s: %d bytes short of what is left to drivers", worker.device, short)
                self.make_way(worker.device, short)

    def settle(self) -> None:
        """Removes the marks of devices where none is left."""
        self.arriving.settle()
        with self._lock:
            begun = self._begun
            if not self._marks or begun != self._ended:
                return
        there = {one.worker.device for one in self._look()}
        with self._lock:
            if begun == self._begun:  # else there may be some since the look
                for device in self._marks.keys() - there:
                    self._marks.pop(device).close()

    def _look(self) -> list[Resident]:
        """Returns what there is, also what restores have claimed: it is resident again where they are taken back."""
        with self._lock:
            devices = {*self._marks}
        there = [worker for worker in self.fleet.living_workers() if worker.device in devices]
        return [one for some in side_by_side(partial(_of, worker) for worker in there) for one in some]

    def _make_way_of(self, one: Resident) -> int:
        released = evict(one)
        if released:
            self.evicted(one.hold)
        return released

    def _candidates(self, device: str, beside: Collection[str]) -> Iterator[Resident]:
        return (one for one in self.all() if one.worker.device == device and one.hold not in beside)

    def _mark(self, device: str) -> None:
        """Raises NoRoom for too many devices. The lock is held."""
        if device not in self._marks:
            with ExitStack() as mark:
                mark.enter_context(self.occupied.on(device))
                self._marks[device] = mark.pop_all()


def evict(one: Resident) -> int:
    """Returns the bytes that were released; 0 where a restore has them, or the worker is gone with them."""
    try:
        released = one.worker.handles.evict(one.hold)
    except GcrError as error:
        log.warning("device %s: memory of %s was not evicted: %s", one.worker.device, one.hold, error)
        return 0
    log.info("device %s: %d bytes of process %s evicted", one.worker.device, released, one.hold)
    return released


def _of(worker: WorkerPeer) -> list[Resident]:
    """Returns what a worker has; nothing where it does not answer."""
    try:
        found = worker.handles.resident()
    except GcrError as error:
        log.warning("worker %d of %s does not say what is resident: %s", worker.pid, worker.device, error)
        return []
    return [Resident(worker, hold, size, since) for hold, (size, since) in found.items()]
