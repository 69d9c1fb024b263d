"""Names, ordinals and the simulated mark of devices, the same for all vendors."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from gcr.backend import Device
from gcr.drain import DeviceMemory
from gcr.errors import BackendMissing, DriverTooOld, GcrError
from gcr.units import dashed

log = logging.getLogger(__name__)

_PREFIX = "GPU-"


def uuid_text(raw: bytes) -> str:
    """`GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` over sixteen bytes, for every vendor."""
    return f"{_PREFIX}{dashed(raw)}"


def uuid_bytes(text: str) -> bytes:
    """The sixteen bytes of a UUID, with or without its prefix. Raises ValueError."""
    raw = bytes.fromhex(text.removeprefix(_PREFIX).replace("-", ""))
    if len(raw) != 16:
        raise ValueError(f"{text!r} is no UUID")
    return raw


def same_uuid(one: str, other: str) -> bool:
    return one.removeprefix(_PREFIX).lower() == other.removeprefix(_PREFIX).lower()


def is_simulated(name: str) -> bool:
    """Simulated drivers say so in every device's name."""
    return "simulated" in name.lower()


def ordinal_in(uuids: Iterable[str], wanted: str, hint: str = "gcr devices") -> int:
    """Returns the place of `wanted` in the driver's order of devices. Raises BackendMissing."""
    for ordinal, each in enumerate(uuids):
        if same_uuid(each, wanted):
            return ordinal
    raise BackendMissing(f"the driver shows no device {wanted}", hint=hint)


def if_present(look: Callable[[], Sequence[Device]], *also: type[GcrError]) -> Sequence[Device]:
    """The devices that `look` finds; none without a driver, or with one too old to ask. The probe says why.

    `also`: further errors by which a vendor's driver says that there is no device.
    """
    absence: tuple[type[GcrError], ...] = (BackendMissing, DriverTooOld, *also)
    try:
        return look()
    except absence as absent:
        log.debug("no devices: %s", absent)
        return []


def described(uuid: str, name: str, memory: DeviceMemory) -> Device:
    return Device(uuid, name, memory.total, memory.used)


def where_it_has_bytes(bytes_by_device: Mapping[str, int]) -> dict[str, int]:
    """Without the devices on which a process has none."""
    return {device: size for device, size in bytes_by_device.items() if size}
