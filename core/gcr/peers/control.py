"""The control helper of a backend, as the daemon sees it. A method is one JSON call.

It raises what the helper raised, PeerGone or DeadlinePassed.
"""

from collections.abc import Mapping

from msgspec import Struct

from gcr.backend import Device
from gcr.control import ControlMeans, ControlPhase, ProcessView
from gcr.protocol.channel import Channel
from gcr.protocol.operations import control as ops
from gcr.protocol.operations.operation import A, Operation, ask

LOOK_S = 20.0  # seconds for a call that only looks


class ControlPeer(Struct):
    """The control helper of one backend; the ControlState interface, one process away."""

    channel: Channel
    pid: int
    _means: ControlMeans | None = None

    @property
    def means(self) -> ControlMeans:
        """The way control state is saved (`ControlMeans`); asked once."""
        if self._means is None:
            self._means = self._call(ops.Means(), LOOK_S).means
        return self._means

    def phase(self, pid: int) -> ControlPhase:
        return self._call(ops.Phase(pid), LOOK_S).phase

    def inspect(self, pid: int) -> ProcessView:
        found = self._call(ops.Inspect(pid), LOOK_S)
        return ProcessView(pid, found.phase, found.bytes_by_device, found.refusals)

    def devices(self) -> list[Device]:
        """Returns all devices of its vendor, in the order of `gcr devices`."""
        return [*self._call(ops.Devices(), LOOK_S).devices]

    def free_bytes(self) -> dict[str, int]:
        """Returns the free bytes of each device, by UUID."""
        return {device.uuid: device.total_bytes - device.used_bytes for device in self.devices()}

    def check_move(self, devices: Mapping[str, str]) -> None:
        """Raises where a process cannot come back on these devices; `devices`: UUIDs, old to new.

        Without devices it raises where the vendor moves processes to no other devices at all.
        """
        self._call(ops.CheckMove(dict(devices)), LOOK_S)

    def reaches(self, device: str, peer: str) -> bool:
        """Tells whether work on `device` reaches memory of `peer`; True where the vendor does not tell."""
        return self._call(ops.Reaches(device, peer), LOOK_S).reaches

    def holders(self, device: str) -> dict[int, int]:
        """Returns the pids that use a device, with their bytes; empty where the driver does not tell."""
        return self._call(ops.Holders(device), LOOK_S).holders

    def lock(self, pid: int, deadline: float) -> None:
        self._call(ops.Lock(pid, deadline), deadline + 2)

    def checkpoint(self, pid: int, deadline: float) -> None:
        self._call(ops.Checkpoint(pid, deadline), deadline + 2)

    def restore(self, pid: int, devices: Mapping[str, str], deadline: float) -> None:
        self._call(ops.Restore(pid, deadline, dict(devices)), deadline + 2)

    def unlock(self, pid: int, deadline: float) -> None:
        self._call(ops.Unlock(pid, deadline), deadline + 2)

    def _call(self, operation: Operation[A], timeout: float) -> A:
        return ask(self.channel, operation, timeout=timeout)[0]
