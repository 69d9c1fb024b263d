"""Ballast of a checkpoint: what the driver gave back when it froze a process is kept for its way back.

A rollback restores the control state, and that needs the room again: had another program taken it meanwhile, the job
would be lost. It cannot be held before the driver gives it back, since that would need it twice.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from threading import Thread

from msgspec import Struct, field

from gcr.engine.count import DeviceCount
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.errors import NoRoom
from gcr.peers.worker import WorkerPeer

log = logging.getLogger("gcr.engine")

FACTOR = 1.1  # the driver's own needs at restore, measured before the freeze, and some more
SETTLED_WITHIN = 20.0  # longer than a call to a worker may take


class Room(Struct):
    """What the targets leave behind on each device, besides what the driver has for itself: no restore can have more.

    Neither changes by what they allocate and free.
    """

    targets: Sequence[Target]
    left_behind: Counter[str] = field(default_factory=Counter)  # bytes by device: free, or data of theirs

    def look(self) -> None:
        """While they run."""
        devices = {device for target in self.targets for device in target.devices}
        self.left_behind = Counter(self.targets[0].free_bytes(devices)) + self._data() if devices else Counter()

    def spare(self, device: str) -> int:
        """Each one's share of what is left beside their data."""
        users = sum(device in target.devices for target in self.targets)
        return max(0, self.left_behind[device] - self._data()[device]) // max(1, users)

    def _data(self) -> Counter[str]:
        found = Counter[str]()
        for target in self.targets:
            found.update(target.bytes_by_device)
        return found


class Ballasts(Struct):
    """Of the processes of a checkpoint, each on its devices. `_kept`: by pid, what is on its way back."""

    room: Room
    count: DeviceCount
    _kept: dict[int, "WayBack"] = field(default_factory=dict)

    def of(self, target: Target, device: str) -> int:
        """Returns the bytes that the driver had for itself.

        Never less than an earlier checkpoint found, unless there is no more room.
        """
        known, own = target.process.ballast_by_device.get(device, 0), self._own(target, device)
        return min(max(known, int(own * FACTOR)), own + self.room.spare(device))

    def keep(self, target: Target) -> None:
        """Begins to hold them, once the driver has given them back. A full device has room for no more than that."""
        sizes = {device: [self.of(target, device), self._own(target, device)] for device in target.bytes_by_device}
        self._kept[target.pid] = WayBack(target, sizes)
        self._kept[target.pid].keep()

    def give(self, target: Target) -> None:
        """Gives up those of a process; its driver is about to need the room."""
        if kept := self._kept.pop(target.pid, None):
            kept.give()

    def settle(self, target: Target) -> None:
        """Waits until what was begun for a process is over."""
        if kept := self._kept.pop(target.pid, None):
            kept.settle()

    def _own(self, target: Target, device: str) -> int:
        return self.count.without_data.get((target.pid, device), 0)


class WayBack(Struct):
    """Of one process. `sizes`: by device, bytes to try, the largest first; taken beside everything else."""

    target: Target
    sizes: Mapping[str, Sequence[int]]
    _taking: Thread | None = field(default=None)

    def keep(self) -> None:
        """Begin; best effort, and nobody waits for it."""
        self._taking = Thread(target=self._take, name="gcr-ballast", daemon=True)
        self._taking.start()

    def settle(self) -> None:
        """What was begun is over: what was taken is known to the worker and goes with its next release."""
        if self._taking:
            self._taking.join(SETTLED_WITHIN)
        self._taking = None

    def give(self) -> None:
        """The driver is about to need the room."""
        self.settle()
        for worker in self.target.workers():
            quietly("drop ballast", partial(worker.drop_ballast, self.target.hold))

    def _take(self) -> None:
        for worker in self.target.workers():
            quietly("ballast", partial(self._take_some, worker))

    def _take_some(self, worker: WorkerPeer) -> None:
        """Raises NoRoom when somebody else was faster; a rollback then depends on their leaving."""
        *more, least = self.sizes[worker.device]
        for size in more:
            try:
                return worker.hold_ballast(self.target.hold, size)
            except NoRoom:
                continue
        return worker.hold_ballast(self.target.hold, least)
