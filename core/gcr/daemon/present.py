"""The devices that jobs see, with how much of each is in use by its own count: the upper half of `gcr top`."""

import logging
from collections.abc import Callable, Iterable

from gcr.api.listings import DeviceInfo
from gcr.backend import Device
from gcr.devices import is_simulated
from gcr.engine.node import World
from gcr.errors import GcrError
from gcr.peers.control import ControlPeer

log = logging.getLogger("gcr.daemon")


def devices_of(worlds: Iterable[World], control: Callable[[World], ControlPeer]) -> list[DeviceInfo]:
    """Returns a row for each device once; none of a world with a driver that gives no answer."""
    found: dict[str, DeviceInfo] = {}
    for world in dict.fromkeys(worlds):
        try:
            for index, device in enumerate(control(world).devices()):
                found.setdefault(device.uuid, _row(world.backend, index, device))
        except GcrError as error:
            log.info("no devices of %s: %s", world.backend, error)
    return list(found.values())


def _row(backend: str, index: int, device: Device) -> DeviceInfo:
    return DeviceInfo(
        backend=backend,
        index=index,
        uuid=device.uuid,
        name=device.name,
        total_bytes=device.total_bytes,
        used_bytes=device.used_bytes,
        simulated=is_simulated(device.name),
    )
