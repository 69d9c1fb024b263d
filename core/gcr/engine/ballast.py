"""Ballast of a checkpoint: room that the driver gives up when it freezes a process, held for its way back.

A rollback restores the control state, and that needs the room again: had another program taken it meanwhile, the job
would be lost. gcr cannot hold it before the driver gives it up, since that would need it twice.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event, Thread

from msgspec import Struct, field

from gcr.engine.copyout import refuse_without_room
from gcr.engine.count import DeviceCount
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.errors import GcrError, NoRoom
from gcr.peers.worker import WorkerPeer

log = logging.getLogger("gcr.engine")

FACTOR = 1.1  # the driver's own needs at restore, measured before the freeze, and some more
SETTLED_WITHIN = 20.0  # longer than a call to a worker may take
TURN_WITHIN = 10.0  # of other jobs' drivers at the device


class Room(Struct):
    """The room on each device besides the driver's own: no restore can have more.

    It does not change when the targets allocate and free.
    """

    targets: Sequence[Target]
    left_behind: Counter[str] = field(default_factory=Counter)  # bytes by device: free, or the targets' data

    def look(self) -> None:
        """Asks the devices, while the targets run."""
        devices = {device for target in self.targets for device in target.devices}
        self.left_behind = Counter(self.targets[0].free_bytes(devices)) + self._data() if devices else Counter()

    def spare(self, device: str) -> int:
        """Returns the share of one process in the room that is left beside the data of all."""
        users = sum(device in target.devices for target in self.targets)
        return max(0, self.left_behind[device] - self._data()[device]) // max(1, users)

    def _data(self) -> Counter[str]:
        found = Counter[str]()
        for target in self.targets:
            found.update(target.bytes_by_device)
        return found


class Ballasts(Struct):
    """The ballast of each process of a checkpoint, on each of its devices. `_kept`: by pid."""

    room: Room
    count: DeviceCount
    _kept: dict[int, "WayBack"] = field(default_factory=dict)

    def of(self, target: Target, device: str) -> int:
        """Returns the bytes that the driver had for itself.

        Never less than an earlier checkpoint found, unless there is no more room.
        """
        known, own = target.process.suspension.ballast_by_device.get(device, 0), self._own(target, device)
        return min(max(known, int(own * FACTOR)), own + self.room.spare(device))

    def keep(self, target: Target) -> None:
        """Begins to hold them, once the driver has given them back. A full device has room for no more than that."""
        sizes = {device: [self.of(target, device), self._own(target, device)] for device in target.bytes_by_device}
        self._kept[target.pid] = WayBack(target, sizes)
        self._kept[target.pid].keep()

    @contextmanager
    def given_up(self, target: Target) -> Iterator[None]:
        """Gives up the ballast of a process; its driver takes the room within the block.

        Raises DeadlinePassed; NoRoom where the room was not held, and is not there.
        """
        kept = self._kept.pop(target.pid, None)
        if kept:
            kept.settle()
        with way_back(target, kept):
            yield

    def settle(self, target: Target) -> None:
        """Waits until no call for a process is under way."""
        if kept := self._kept.pop(target.pid, None):
            kept.settle()
            target.process.suspension.unheld_by_device.clear()

    def _own(self, target: Target, device: str) -> int:
        return self.count.without_data.get((target.pid, device), 0)


@contextmanager
def way_back(target: Target, kept: "WayBack | None" = None) -> Iterator[None]:
    """The driver takes a process back within the block, before any decision.

    Raises DeadlinePassed; NoRoom where the room for that was not held, and is not there: the process stays with the
    driver, which is not asked.
    """
    unheld, turns = target.process.suspension.unheld_by_device, target.node.turns
    turn = turns.alone if unheld else turns.taking
    with turn(target.devices, target.node.config.control_s):
        if kept:
            kept.drop()
        if unheld and target.control_state.is_saved():
            try:
                _see_room(target, unheld)
            except NoRoom:
                unheld.update(kept.least() if kept else {})  # it was dropped as well
                raise
        yield
        unheld.clear()


def _see_room(target: Target, needs: Mapping[str, int]) -> None:
    """Evicts resident memory of other processes where a device has not so much room. Raises NoRoom."""
    try:
        refuse_without_room(needs, target.free_bytes(needs))
    except NoRoom:
        for device, size in needs.items():
            target.node.make_way(device, size, [target.hold])
        refuse_without_room(needs, target.free_bytes(needs))


class WayBack(Struct):
    """The ballast of one process, taken in the background. `sizes`: by device, bytes to try, the largest first."""

    target: Target
    sizes: Mapping[str, Sequence[int]]
    _taking: Thread | None = field(default=None)
    _over: Event = field(default_factory=Event)  # none is taken any more

    def keep(self) -> None:
        """Begins to take it; a failure is logged, and noted in the process's suspension."""
        self.target.process.suspension.unheld_by_device = self.least()
        self._taking = Thread(target=self._take, name="gcr-ballast", daemon=True)
        self._taking.start()

    def settle(self) -> None:
        """Waits until it is taken, or not to be had; none is taken later.

        The worker releases it with the memory of the process.
        """
        self._over.set()
        if self._taking:
            self._taking.join(SETTLED_WITHIN)
        self._taking = None

    def drop(self) -> None:
        """Gives it up, once it is taken; the driver is about to need the room. A worker that has died held none."""
        for worker in self.target.workers():
            try:
                worker.handles.drop_ballast(self.target.hold)
            except GcrError as error:
                log.warning("job %s: ballast on %s: %s", self.target.process.job, worker.device, error)
                self.target.process.suspension.unheld_by_device[worker.device] = self.sizes[worker.device][-1]

    def least(self) -> dict[str, int]:
        """Returns the bytes by device that the driver had."""
        return {device: sizes[-1] for device, sizes in self.sizes.items()}

    def _take(self) -> None:
        for worker in self.target.workers():
            quietly("ballast", partial(self._take_some, worker))

    def _take_some(self, worker: WorkerPeer) -> None:
        """Raises NoRoom when another program was faster; a rollback then needs that program to leave."""
        *more, least = self.sizes[worker.device]
        with self.target.node.turns.making([worker.device], TURN_WITHIN):
            if self._over.is_set():
                return
            for size in more:
                with suppress(NoRoom):
                    self._hold(worker, size)
                    return
            self._hold(worker, least)

    def _hold(self, worker: WorkerPeer, size: int) -> None:
        worker.handles.hold_ballast(self.target.hold, size)
        self.target.process.suspension.unheld_by_device.pop(worker.device, None)
