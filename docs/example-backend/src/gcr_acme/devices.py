"""Devices by UUID, what they say of their memory, and what works here."""

from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t, c_uint8, c_uint64, create_string_buffer

from gcr.backend import Capability, Device
from gcr.devices import described, if_present, ordinal_in, uuid_text
from gcr.drain import DeviceMemory
from gcr.facilities import facility, resting_on
from gcr.probing import Check, answers, named
from gcr_acme.driver import acme

_NAME_BYTES = 64
_MOST_PROCESSES = 256


def count() -> int:
    found = c_int()
    acme.acmeDeviceCount(byref(found))
    return found.value


def uuid_of(ordinal: int) -> str:
    raw = (c_uint8 * 16)()
    acme.acmeDeviceUuid(c_int(ordinal), raw)
    return uuid_text(bytes(raw))


def ordinal_of(wanted: str) -> int:
    """Raises BackendMissing."""
    return ordinal_in(map(uuid_of, range(count())), wanted)


def name_of(ordinal: int) -> str:
    text = create_string_buffer(_NAME_BYTES)
    acme.acmeDeviceName(c_int(ordinal), text, c_size_t(_NAME_BYTES))
    return text.value.decode()


def memory_of(ordinal: int) -> DeviceMemory:
    """The device's own count; needs no context."""
    used, total = c_uint64(), c_uint64()
    acme.acmeDeviceMemory(c_int(ordinal), byref(used), byref(total))
    return DeviceMemory(used.value, total.value, users_of(ordinal))


def users_of(ordinal: int) -> dict[int, int]:
    """Bytes by process."""
    pids, sizes = (c_int * _MOST_PROCESSES)(), (c_uint64 * _MOST_PROCESSES)()
    found = c_size_t(_MOST_PROCESSES)
    acme.acmeDeviceUsers(c_int(ordinal), pids, sizes, byref(found))
    return {pids[i]: sizes[i] for i in range(found.value)}


def present() -> Sequence[Device]:
    """None without a driver: absence is no error."""
    return if_present(lambda: [described(uuid_of(n), name_of(n), memory_of(n)) for n in range(count())])


# ---- what works here ----------------------------------------------------------------------------------------------


CHECKS = (
    Check("library", lambda: f"{count()} devices", "install acme's driver"),
    Check("device", lambda: named(present()), "is there an acme device in this machine?"),
)


def capabilities() -> Sequence[Capability]:
    checks = answers(CHECKS)
    grounds = ("library", "device")
    return [
        *checks,
        resting_on("handoff", checks, grounds, "acmeExport and acmeImport"),
        resting_on("copyout", checks, grounds, "copies made by the agent"),
        resting_on("driver_strategy", checks, grounds, "acmeProcessCheckpoint carries the data too"),
        facility("device_hash", False, "no kernel", "device memory is copied to the host and hashed there"),
        resting_on("control_state", checks, grounds, "acmeProcessLock, Checkpoint, Restore, Unlock"),
        facility("device_map", False, "not built", "a job comes back on the devices that it left"),
        facility("verified_on", False, "a simulated driver only: acme does not exist", "run these tests on a device"),
    ]
