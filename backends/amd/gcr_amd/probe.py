"""What works here: each capability with what showed it and what would mend it. Absence is an answer, not an error."""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from gcr.backend import Capability
from gcr.drain import HandleSpec
from gcr.errors import GcrError
from gcr.facilities import facility, resting_on
from gcr.vmm import DeviceFull
from gcr_amd import devices, leak
from gcr_amd.memory import HipDevice
from gcr_amd.runtime import bindings, enum, hip, initialise, version

T = TypeVar("T")
Check = tuple[str, Callable[[], str], str]  # name, the evidence or an error, remedy
_OLDEST_CRIU = (4, 1)
_INSTALL_ROCM = "install ROCm's runtime, 5.4 or newer (libamdhip64.so)"
_CRIU_HELP = "install CRIU 4.1 or newer with its amdgpu plugin; --data-only needs neither"


class _Lacking(Exception):
    """A capability is not there; the text is the evidence."""


OPTIONAL = frozenset({"descriptors", "criu", "criu_plugin", "release"})


def capabilities() -> Sequence[Capability]:
    checks = [_ask(*check) for check in _CHECKS]
    return [*checks, *_facilities(checks)]


def _facilities(checks: Sequence[Capability]) -> Sequence[Capability]:
    return [
        resting_on("handoff", checks, ("runtime", "device", "virtual_memory", "descriptors"), "memory as descriptors"),
        resting_on("copyout", checks, ("runtime", "device", "virtual_memory"), "copies made by the agent"),
        facility("driver_strategy", False, "HIP has no checkpoint call", "start the program with gcr run"),
        facility("device_hash", False, "not built yet", "nothing is compared by content; all of it is moved"),
        facility("control_state", False, "HIP has no checkpoint call", "--data-only keeps the process and its state"),
        facility("device_map", False, "not built yet", "a job comes back on the devices that it left"),
        facility("verified_on", False, "a simulated runtime only", "run the contract of gcr.testing on a device"),
    ]


def _ask(name: str, evidence: Callable[[], str], remedy: str) -> Capability:
    try:
        return Capability(name, True, evidence(), needed=name not in OPTIONAL)
    except (_Lacking, GcrError) as lacking:
        return Capability(name, False, str(lacking), remedy, needed=name not in OPTIONAL)


def _bindings() -> str:
    import importlib.metadata

    bindings()
    return f"hip-python {importlib.metadata.version('hip-python')}"


def _runtime() -> str:
    return "HIP runtime " + ".".join(map(str, version()))


def _device() -> str:
    found = devices.present()
    if not found:
        initialise()
        raise _Lacking("no device")
    names = ", ".join(f"{each.name} ({each.uuid})" for each in found)
    simulated = any(devices.is_simulated(each.name) for each in found)
    return f"SIMULATED: {names}" if simulated else names


def _vmm() -> str:
    initialise()
    attribute = enum("hipDeviceAttribute_t", "hipDeviceAttributeVirtualMemoryManagementSupported")
    without = [n for n in range(int(hip.hipGetDeviceCount())) if not hip.hipDeviceGetAttribute(attribute, n)]
    if without:
        raise _Lacking(f"device {without[0]} has no virtual memory management")
    return "every device has virtual memory management"


@cache
def _first() -> HipDevice:
    found = devices.counted()
    if not found:
        raise _Lacking("no device")
    return HipDevice(found[0][0])


def _descriptors() -> str:
    """By doing it: the runtime has no attribute for it."""
    device = _first()
    device.enter()
    handle = _or_full(lambda: device.create(device.granularity, HandleSpec(1, device.granularity)))
    try:
        os.close(device.export(handle))
    finally:
        device.release(handle)
    return "memory exports as file descriptors"


def _release() -> str:
    chosen = _or_full(lambda: leak.probe(_first()))
    return f"{chosen.value}: VRAM {'goes with' if chosen is leak.Release.PLAIN else 'outlives'} unmap and release"


def _or_full(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except DeviceFull:
        raise _Lacking("the first device has no room to try it") from None


def _kernel_counts() -> str:
    return f"{len(devices.counted())} devices counted by the kernel"


def _criu() -> str:
    program = shutil.which("criu")
    if program is None:
        raise _Lacking("no criu on the path")
    told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    words = told.split()
    found = tuple(int(part) for part in words[1].split(".")[:2]) if len(words) > 1 else (0, 0)
    if found < _OLDEST_CRIU:
        raise _Lacking(f"criu {words[1] if len(words) > 1 else '?'} on kernel {platform.release()}")
    return f"criu {words[1]}"


def _criu_plugin() -> str:
    for folder in ("/usr/lib/criu", "/usr/local/lib/criu", "/usr/lib64/criu"):
        plugin = Path(folder, "amdgpu_plugin.so")
        if plugin.exists():
            return str(plugin)
    raise _Lacking("no amdgpu_plugin.so")


_CHECKS: Sequence[Check] = (
    ("bindings", _bindings, "pip install 'gpu-cr[amd]'"),
    ("runtime", _runtime, _INSTALL_ROCM),
    ("device", _device, "is a device visible here? try rocminfo; may you open /dev/kfd?"),
    ("kernel_counts", _kernel_counts, "load the amdgpu module: its sysfs files are the device's own count"),
    ("virtual_memory", _vmm, "hand-over needs a device with virtual memory management"),
    ("descriptors", _descriptors, "without them the process itself copies its data out, which is slower"),
    ("release", _release, "free 64 MiB of the device and ask again"),
    ("criu", _criu, _CRIU_HELP),
    ("criu_plugin", _criu_plugin, _CRIU_HELP),
)
