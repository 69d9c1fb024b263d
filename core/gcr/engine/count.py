"""Bytes that the device itself counts for the processes of a checkpoint: before it, without their data, after it.

That memory is free is never said by gcr's own books.
"""

import logging
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from gcr.engine.progress import Copy
from gcr.engine.target import Target
from gcr.errors import DeadlinePassed, PeerGone
from gcr.protocol.operations.worker import Moved

log = logging.getLogger("gcr.daemon")

GONE_WITHIN = 5.0
POLL = 0.002
DRIVERS_GROWTH = 256 << 20  # the worker's context grows as it is used; 64.4 MiB were seen on an H200, and no more
STEADY = 0.5  # seconds after which a count that lags does not change any more; AMD's lags by 0.05


class DeviceCount(Struct):
    """Bytes by process and device UUID."""

    targets: Sequence[Target]
    data_only: bool
    before: dict[Copy, int] = field(default_factory=dict)
    without_data: dict[Copy, int] = field(default_factory=dict)  # handed over, and the driver's state still there
    after: dict[Copy, int] = field(default_factory=dict)  # without what is resident
    resident: dict[Copy, int] = field(default_factory=dict)  # stays on the device, held by a worker

    def look_before(self, target: Target, again: bool = False) -> None:
        """Asks each device that was not asked yet."""
        for device in target.devices:
            if again or (target.pid, device) not in self.before:
                self.before[target.pid, device] = counted(target, device)

    def look_without_data(self, target: Target) -> None:
        self.without_data |= {(target.pid, device): counted(target, device) for device in target.devices}

    def stays(self, target: Target) -> bool:
        """Tells whether the device goes on counting the context of the process."""
        return self.data_only or target.keeps_context

    def wait(self) -> None:
        """Waits until the device counts nothing of the targets but contexts that stay; GONE_WITHIN at most.

        Where contexts stay it ends as well when the count falls no longer: their size is known no better than the
        count is fresh.
        """
        began = changed = time.monotonic()
        last: dict[Copy, int] = {}
        while self._still_held():
            now = time.monotonic()
            if self.after != last:
                last, changed = dict(self.after), now
            elif now > changed + STEADY and all(map(self.stays, self.targets)):
                return
            if now > began + GONE_WITHIN:
                log.warning("still on a device %g s after it left: %s", GONE_WITHIN, _shown(self.after))
                return
            time.sleep(POLL)

    def _still_held(self) -> bool:
        held = [self._holds(target, device) for target in self.targets for device in target.devices]
        return any(held)

    def _holds(self, target: Target, device: str) -> bool:
        key = target.pid, device
        try:
            self.after[key] = counted_and_left(target, device)
        except PeerGone:  # it holds nothing any more; what is the process's own, the control helper sees as well
            self.after[key] = target.counted_by_control(device)
        except DeadlinePassed:  # a worker that does not answer may hold all of it
            self.after[key] = target.bytes_by_device.get(device, 0)
        return self.after[key] > (self._context(target, device) if self.stays(target) else 0)

    def _context(self, target: Target, device: str) -> int:
        """Returns the bytes that stay. Memory from an earlier restore never counted for the process."""
        imported = sum(size for where, size in target.exports.imported.values() if where == device)
        made = target.bytes_by_device.get(device, 0) - imported
        return max(0, self.before[target.pid, device] - made)


def _shown(left: Mapping[Copy, int]) -> str:
    return "; ".join(f"process {pid}, {device}: {size} bytes" for (pid, device), size in left.items() if size)


def counted(target: Target, device: str) -> int:
    """Returns the bytes that the device counts for the process."""
    return _look(target, device)[0]


def counted_and_left(target: Target, device: str) -> int:
    """Returns these bytes, and those in use on the device since the start that no books explain.

    Drivers count memory for the process that made it, and for no process once that one has let go. Memory that another
    job has just made is in no book yet. That passes, so this figure is only to be waited for.
    """
    own, unexplained = _look(target, device)
    more = unexplained - target.books.unexplained.get(device, 0)
    return own + (more if more > DRIVERS_GROWTH else 0)


def _look(target: Target, device: str) -> tuple[int, int]:
    if target.process.copied_out or device not in target.bytes_by_device:
        return target.counted_by_control(device), 0
    return target.worker(device).counted(target.pid)


def refuse_a_part(held: Mapping[int, int], drained: Mapping[Copy, Moved]) -> None:
    """Raises PeerGone unless all bytes of each pid were copied: a worker counts only those of its own device."""
    for pid, size in held.items():
        copied = sum(done.bytes for (of, _device), done in drained.items() if of == pid)
        if copied != size:
            raise PeerGone(f"{copied} bytes of process {pid} were copied, and it holds {size}")
