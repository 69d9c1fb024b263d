"""The capabilities here, each with its evidence and the remedy for its absence. Absence is an answer, not an error."""

from collections.abc import Sequence
from functools import cache

from gcr.backend import Capability
from gcr.criu.plugins import plugins_of
from gcr.devices import is_simulated
from gcr.errors import GcrError
from gcr.facilities import facility, resting_on
from gcr.probing import Check, Lacking, all_have, answers, named
from gcr.vmm import trial
from gcr_amd import devices, hashing, leak
from gcr_amd.memory import HipDevice
from gcr_amd.runtime import bindings, enum, hip, version

_INSTALL_ROCM = "install ROCm's runtime, 5.4 or newer (libamdhip64.so)"
_CRIU_HELP = "install CRIU's amdgpu plugin: without it no image has the processes (--stop, --processes)"


def capabilities() -> Sequence[Capability]:
    checks = answers(CHECKS)
    return [*checks, *_facilities(checks)]


def _facilities(checks: Sequence[Capability]) -> Sequence[Capability]:
    return [
        resting_on("handoff", checks, ("runtime", "device", "virtual_memory", "descriptors"), "memory as descriptors"),
        resting_on("copyout", checks, ("runtime", "device", "virtual_memory"), "copies made by the agent"),
        facility("driver_strategy", False, "HIP has no checkpoint call", "start the program with gcr run"),
        _device_hash(checks),
        facility("control_state", False, "HIP has no checkpoint call", "--data-only keeps the process and its state"),
        facility("device_map", False, "HIP has no checkpoint call", "a job comes back on the devices that it left"),
        facility("verified_on", False, "a simulated runtime only", "docs/amd.md: what hardware must answer"),
    ]


def _device_hash(checks: Sequence[Capability]) -> Capability:
    found = resting_on("device_hash", checks, ("runtime", "device"), "")
    if not found.ok:
        return found
    try:
        simulated = any(is_simulated(each.name) for each in devices.present())
        return facility(found.name, True, hashing.evidence(simulated))
    except GcrError as lacking:
        return facility(found.name, False, str(lacking), "device memory is copied to the host and hashed there")


def _bindings() -> str:
    import importlib.metadata

    bindings()
    return f"hip-python {importlib.metadata.version('hip-python')}"


def _runtime() -> str:
    return "HIP runtime " + ".".join(map(str, version()))


def _device() -> str:
    return named(devices.present() if devices.count() else [])


def _vmm() -> str:
    count = devices.count()
    attribute = enum("hipDeviceAttribute_t", "hipDeviceAttributeVirtualMemoryManagementSupported")
    return all_have("virtual memory management", lambda n: hip.hipDeviceGetAttribute(attribute, n), count)


@cache
def _first() -> HipDevice:
    found = devices.counted()
    if not found:
        raise Lacking("no device")
    return HipDevice(found[0][0])


def _descriptors() -> str:
    return trial.exports(_first())  # the runtime has no attribute for it


def _release() -> str:
    chosen = trial.with_room(lambda: leak.probe(_first()))
    if chosen is leak.Release.KEPT:
        raise Lacking("kept: VRAM outlives unmap, release, and a mapping over; its address does not come back")
    return f"{chosen.value}: VRAM {'goes with' if chosen is leak.Release.PLAIN else 'outlives'} unmap and release"


def _kernel_counts() -> str:
    return f"{len(devices.counted())} devices counted by the kernel"


def _criu_plugin() -> str:
    simulated = any(is_simulated(each.name) for each in devices.present())
    try:
        return ", ".join(map(str, plugins_of("amd", simulated)))
    except GcrError as missing:
        raise Lacking(missing.message) from missing


CHECKS: Sequence[Check] = (
    Check("bindings", _bindings, "pip install 'hip-python>=7.2.2'"),
    Check("runtime", _runtime, _INSTALL_ROCM),
    Check("device", _device, "is a device visible here? try rocminfo; may you open /dev/kfd?"),
    Check("kernel_counts", _kernel_counts, "load the amdgpu module: its sysfs files are the device's own count"),
    Check("virtual_memory", _vmm, "hand-over needs a device with virtual memory management"),
    Check(
        "descriptors",
        _descriptors,
        "without them the process copies its data out itself, slower",
        needed=False,
    ),
    Check("release", _release, "free 64 MiB of the device and ask again", needed=False),
    Check("criu_plugin", _criu_plugin, _CRIU_HELP, needed=False),
)
