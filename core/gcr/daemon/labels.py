"""Short names of devices, as `gcr devices` numbers them: `nvidia:0`."""

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from gcr.backend import Device
from gcr.engine.node import World


class Labels(Struct):
    """Numbers of devices. The driver is asked when a device is first met, never while a caller waits for a table."""

    _known: dict[World, dict[str, str]] = field(default_factory=dict)

    def of(self, world: World, uuid: str) -> str | None:
        return self._known.get(world, {}).get(uuid)

    def learn(self, world: World, uuids: Sequence[str], devices: Callable[[], Sequence[Device]]) -> None:
        """Ask for all devices if one of these is not known. Raises GcrError."""
        if any(self.of(world, uuid) is None for uuid in uuids):
            named = enumerate(devices())
            self._known[world] = {device.uuid: f"{world.backend}:{index}" for index, device in named}
