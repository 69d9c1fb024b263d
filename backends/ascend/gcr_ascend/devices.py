"""Devices as the ACL runtime lists them, and DCMI's count of their memory. Neither opens a device."""

import ctypes
import functools
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gcr.backend import Device
from gcr.drain import DeviceMemory
from gcr.errors import BackendMissing, DriverError, DriverTooOld
from gcr_ascend.abi import ProcMemInfo
from gcr_ascend.acl import acl

log = logging.getLogger("gcr.ascend")

MB = 1 << 20
MAX_PROCESSES = 32  # dcmi_get_device_resource_info writes no more


@functools.cache
def _start_dcmi() -> None:
    acl.dcmi_init()


def uuid_of(ordinal: int) -> str:
    """`GPU-xxxxxxxx-xxxx-…` over the runtime's 16 bytes, as gcr writes every vendor's."""
    return f"GPU-{uuid.UUID(bytes=bytes(acl.aclrtDeviceGetUuid(ordinal).bytes))}"


def ordinals() -> Mapping[str, int]:
    """The runtime's ordinal of every device, by UUID. Raises BackendMissing without a runtime."""
    return {uuid_of(ordinal): ordinal for ordinal in range(int(acl.aclrtGetDeviceCount()))}


@dataclass(frozen=True, slots=True)
class Card:
    """Where DCMI keeps a device."""

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
    """Every device; empty without a runtime and a driver, or with such that are too old. The probe says why."""
    try:
        return [_describe(device, Card.of(ordinal)) for device, ordinal in ordinals().items()]
    except (BackendMissing, DriverTooOld, DriverError) as absent:
        log.info("no Ascend devices: %s", absent)
        return []


def _describe(device: str, card: Card) -> Device:
    memory = card.memory()
    return Device(device, card.name(), memory.total, memory.used)


def bytes_of(pid: int) -> dict[str, int]:
    """Device UUID to the bytes a process has there; devices where it has none are left out."""
    found = {device: Card.of(ordinal).holders().get(pid, 0) for device, ordinal in ordinals().items()}
    return {device: size for device, size in found.items() if size}


def is_simulated(name: str) -> bool:
    """The simulated runtime says so in every device's name."""
    return "simulated" in name.lower()
