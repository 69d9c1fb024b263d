"""Devices as the ACL runtime lists them, and DCMI's count of their memory. Neither opens a device."""

import ctypes
import functools
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gcr.backend import Device
from gcr.devices import described, if_present, uuid_text, where_it_has_bytes
from gcr.drain import DeviceMemory
from gcr.errors import BackendMissing, DriverError
from gcr_ascend.abi import ProcMemInfo
from gcr_ascend.acl import acl

MB = 1 << 20
MAX_PROCESSES = 32  # dcmi_get_device_resource_info writes no more


@functools.cache
def _start_dcmi() -> None:
    acl.dcmi_init()


def uuid_of(ordinal: int) -> str:
    return uuid_text(bytes(acl.aclrtDeviceGetUuid(ordinal).bytes))


def ordinals() -> Mapping[str, int]:
    """The runtime's ordinal of every device, by UUID. Raises BackendMissing without a runtime."""
    return {uuid_of(ordinal): ordinal for ordinal in range(int(acl.aclrtGetDeviceCount()))}


class Card(Struct, frozen=True):
    """The place of a device in DCMI."""

    card: int
    device: int

    @classmethod
    def of(cls, ordinal: int) -> "Card":
        _start_dcmi()
        return cls(*acl.dcmi_get_card_id_device_id_from_logicid(ordinal))

    def name(self) -> str:
        chip = acl.dcmi_get_device_chip_info(self.card, self.device)
        return f"{chip.chip_type.decode(errors='replace')} {chip.chip_name.decode(errors='replace')}"

    def memory(self) -> DeviceMemory:
        counted = acl.dcmi_get_device_hbm_info(self.card, self.device)
        return DeviceMemory(int(counted.memory_usage) * MB, int(counted.memory_size) * MB, self.holders())

    def holders(self) -> Mapping[int, int]:
        """Bytes by process."""
        found = (ProcMemInfo * MAX_PROCESSES)()
        first = ctypes.cast(found, ctypes.POINTER(ProcMemInfo))
        count = acl.dcmi_get_device_resource_info(self.card, self.device, first)
        return {int(each.proc_id): int(each.proc_mem_usage) for each in found[: int(count)]}


def card_of(device: str) -> Card:
    """Raises BackendMissing when there is no such device."""
    known = ordinals()
    if device not in known:
        raise BackendMissing(f"no Ascend device {device} here", hint="gcr devices")
    return Card.of(known[device])


def present() -> Sequence[Device]:
    """Every device; empty without a runtime and a driver, or with such that are too old."""
    return if_present(lambda: [_describe(device, Card.of(n)) for device, n in ordinals().items()], DriverError)


def _describe(device: str, card: Card) -> Device:
    return described(device, card.name(), card.memory())


def bytes_of(pid: int) -> dict[str, int]:
    """Device UUID to the bytes a process has there; devices where it has none are left out."""
    return where_it_has_bytes({device: Card.of(n).holders().get(pid, 0) for device, n in ordinals().items()})
