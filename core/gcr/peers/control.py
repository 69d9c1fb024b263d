"""The control helper of a backend, as the daemon sees it. A method is one JSON call.

It raises what the helper raised, PeerGone or DeadlinePassed.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gcr.backend import Device
from gcr.control import ControlMeans, ControlPhase, ProcessView, Refusal
from gcr.protocol.channel import Channel


class ControlPeer(Struct):
    """The control helper of one backend; the ControlState interface, one process away."""

    channel: Channel
    pid: int
    _means: ControlMeans | None = None

    @property
    def means(self) -> ControlMeans:
        """The way control state is saved (`ControlMeans`); asked once."""
        if self._means is None:
            self._means = ControlMeans(self._call("means", {}, 20.0)["means"])
        return self._means

    def phase(self, pid: int) -> ControlPhase:
        return ControlPhase(self._call("phase", {"pid": pid}, 20.0)["phase"])

    def inspect(self, pid: int) -> ProcessView:
        found = self._call("inspect", {"pid": pid}, 20.0)
        refusals = tuple(Refusal(**refusal) for refusal in found["refusals"])
        return ProcessView(pid, ControlPhase(found["phase"]), found["bytes_by_device"], refusals)

    def devices(self) -> list[Device]:
        """All of its vendor's, in the order of `gcr devices`."""
        return [Device(**found) for found in self._call("devices", {}, 20.0)["devices"]]

    def free_bytes(self) -> dict[str, int]:
        """Returns the free bytes of each device, by UUID."""
        return {device.uuid: device.total_bytes - device.used_bytes for device in self.devices()}

    def check_move(self, devices: Mapping[str, str]) -> None:
        """Raises what says that a process cannot come back so, UUIDs old to new; none: on no other devices at all."""
        self._call("check_move", {"devices": dict(devices)}, 20.0)

    def holders(self, device: str) -> dict[int, int]:
        """Returns the pids that use a device, with their bytes; empty where the driver does not tell."""
        found = self._call("holders", {"device": device}, 20.0)["holders"]
        return {int(pid): int(size) for pid, size in found.items()}

    def lock(self, pid: int, deadline: float) -> None:
        self._call("lock", {"pid": pid, "deadline": deadline}, deadline + 2)

    def checkpoint(self, pid: int, deadline: float) -> None:
        self._call("checkpoint", {"pid": pid, "deadline": deadline}, deadline + 2)

    def restore(self, pid: int, devices: Mapping[str, str], deadline: float) -> None:
        self._call("restore", {"pid": pid, "devices": dict(devices), "deadline": deadline}, deadline + 2)

    def unlock(self, pid: int, deadline: float) -> None:
        self._call("unlock", {"pid": pid, "deadline": deadline}, deadline + 2)

    def _call(self, op: str, body: Mapping[str, object], timeout: float) -> dict[str, Any]:
        return self.channel.call_json(op, body, timeout=timeout)[0]
