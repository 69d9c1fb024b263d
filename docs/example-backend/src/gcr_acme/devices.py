"""Devices by UUID, what they say of their memory, and what works here."""

import uuid
from collections.abc import Callable, Sequence
from ctypes import create_string_buffer

from gcr.backend import Capability, Device
from gcr.drain import DeviceMemory
from gcr.errors import BackendMissing, GcrError
from gcr.facilities import facility, resting_on
from gcr_acme.driver import byref, c_int, c_size_t, c_uint8, c_uint64, call

_NAME_BYTES = 64
_MOST_PROCESSES = 256


def count() -> int:
    found = c_int()
    call("acmeDeviceCount", byref(found))
    return found.value


def uuid_of(ordinal: int) -> str:
    """As gcr writes it: GPU- and the sixteen bytes as a UUID, for every vendor."""
    raw = (c_uint8 * 16)()
    call("acmeDeviceUuid", c_int(ordinal), raw)
    return f"GPU-{uuid.UUID(bytes=bytes(raw))}"


def ordinal_of(wanted: str) -> int:
    """Raises BackendMissing."""
    for ordinal in range(count()):
        if uuid_of(ordinal) == wanted:
            return ordinal
    raise BackendMissing(f"the driver shows no device {wanted}")


def name_of(ordinal: int) -> str:
    text = create_string_buffer(_NAME_BYTES)
    call("acmeDeviceName", c_int(ordinal), text, c_size_t(_NAME_BYTES))
    return text.value.decode()


def memory_of(ordinal: int) -> DeviceMemory:
    """The device's own count; needs no context."""
    used, total = c_uint64(), c_uint64()
    call("acmeDeviceMemory", c_int(ordinal), byref(used), byref(total))
    return DeviceMemory(used.value, total.value, users_of(ordinal))


def users_of(ordinal: int) -> dict[int, int]:
    """Bytes by process."""
    pids, sizes = (c_int * _MOST_PROCESSES)(), (c_uint64 * _MOST_PROCESSES)()
    found = c_size_t(_MOST_PROCESSES)
    call("acmeDeviceUsers", c_int(ordinal), pids, sizes, byref(found))
    return {pids[i]: sizes[i] for i in range(found.value)}


def present() -> Sequence[Device]:
    """None without a driver: absence is no error."""
    try:
        return [_describe(ordinal) for ordinal in range(count())]
    except GcrError:
        return []


def _describe(ordinal: int) -> Device:
    memory = memory_of(ordinal)
    return Device(uuid_of(ordinal), name_of(ordinal), memory.total, memory.used)


# ---- what works here ----------------------------------------------------------------------------------------------


def capabilities() -> Sequence[Capability]:
    checks = [
        _ask("library", lambda: f"{count()} devices", "install acme's driver"),
        _ask("device", _device, "is there an acme device in this machine?"),
    ]
    grounds = ("library", "device")
    return [
        *checks,
        resting_on("handoff", checks, grounds, "acmeExport and acmeImport"),
        resting_on("copyout", checks, grounds, "copies made by the agent"),
        resting_on("driver_strategy", checks, grounds, "acmeProcessCheckpoint carries the data too"),
        facility("device_hash", False, "not built", "all of the data is moved"),
        resting_on("control_state", checks, grounds, "acmeProcessLock, Checkpoint, Restore, Unlock"),
        facility("device_map", False, "not built", "a job comes back on the devices that it left"),
        facility("verified_on", False, "a simulated driver only: acme does not exist", "run these tests on a device"),
    ]


def _ask(name: str, evidence: Callable[[], str], remedy: str) -> Capability:
    try:
        return Capability(name, True, evidence())
    except GcrError as lacking:
        return Capability(name, False, str(lacking), remedy)


def _device() -> str:
    names = [name_of(ordinal) for ordinal in range(count())]
    if not names:
        raise BackendMissing("no device")
    simulated = "SIMULATED: " if any("SIMULATED" in name for name in names) else ""
    return simulated + ", ".join(names)
