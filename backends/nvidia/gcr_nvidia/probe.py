"""What works here: each capability with what showed it and what would mend it. Absence is an answer, not an error."""

import os
import platform
from collections.abc import Callable, Sequence

from gcr.backend import Capability
from gcr.errors import GcrError
from gcr.facilities import facility, resting_on
from gcr_nvidia import devices
from gcr_nvidia.driver import (
    INVALID_VALUE,
    NOT_INITIALIZED,
    SUCCESS,
    attempt,
    bindings,
    cuda,
    describe,
    enum,
    initialise,
)

_NEWER_DRIVER = f"install an NVIDIA driver of branch r{devices.OLDEST_BRANCH} or newer"
_PER_PROCESS_EXCLUSIVE = 3

Check = tuple[str, Callable[[], str], str]  # name, the evidence or an error, remedy


class _Lacking(Exception):
    """A capability is not there; the text is the evidence."""


OPTIONAL = frozenset({"rdma"})


def capabilities() -> Sequence[Capability]:
    checks = [_ask(*check) for check in _CHECKS]
    return [*checks, *_facilities(checks)]


def _facilities(checks: Sequence[Capability]) -> Sequence[Capability]:
    return [
        resting_on("handoff", checks, ("driver", "device", "virtual_memory", "descriptors"), "memory as descriptors"),
        resting_on("copyout", checks, ("driver", "device", "virtual_memory"), "copies made by the agent"),
        resting_on("driver_strategy", checks, ("driver", "device", "checkpoint_api"), "the driver's own checkpoint"),
        facility("device_hash", False, "not built yet", "nothing is compared by content; all of it is moved"),
        resting_on("control_state", checks, ("driver", "checkpoint_api"), "the driver's calls, from outside"),
        facility("device_map", False, "not built yet", "a job comes back on the devices that it left"),
        facility("verified_on", True, "NVIDIA H200, driver 580.159 (r580), CUDA 13.0; on no other"),
    ]


def _ask(name: str, evidence: Callable[[], str], remedy: str) -> Capability:
    try:
        return Capability(name, True, evidence(), needed=name not in OPTIONAL)
    except (_Lacking, GcrError) as lacking:
        return Capability(name, False, str(lacking), remedy, needed=name not in OPTIONAL)


def _bindings() -> str:
    import importlib.metadata

    bindings()
    version = importlib.metadata.version("cuda-bindings")
    if tuple(int(part) for part in version.split(".")[:3]) < (12, 9, 1):
        raise _Lacking(f"cuda-bindings {version} hold the GIL in driver calls")
    return f"cuda-bindings {version}"


def _driver() -> str:
    initialise()
    version = int(cuda.cuDriverGetVersion())
    return f"the driver speaks CUDA {version // 1000}.{version % 1000 // 10}"


def _device() -> str:
    found = devices.present()
    if not found:
        raise _Lacking("no device")
    names = ", ".join(f"{each.name} ({each.uuid})" for each in found)
    simulated = any(devices.is_simulated(each.name) for each in found)
    return f"SIMULATED: {names}" if simulated else names


def _branch() -> str:
    version = devices.driver_version()
    if int(version.split(".")[0]) < devices.OLDEST_BRANCH:
        raise _Lacking(f"driver {version}")
    return f"driver {version}"


def _checkpoint_api() -> str:
    if platform.machine() == "aarch64":
        raise _Lacking("the driver has no checkpoint on arm64")
    initialise()
    result, _ = attempt("cuCheckpointProcessGetState", os.getpid())
    if result not in (SUCCESS, INVALID_VALUE, NOT_INITIALIZED):  # what it says of a process without a context
        raise _Lacking(describe("cuCheckpointProcessGetState", result))
    return "cuCheckpointProcessGetState answers"


def _attribute(member: str) -> str:
    initialise()
    attribute = enum("CUdevice_attribute", member)
    without = [n for n in range(_device_count()) if not cuda.cuDeviceGetAttribute(attribute, cuda.cuDeviceGet(n))]
    if without:
        raise _Lacking(f"{member} is 0 on device {without[0]}")
    return f"{member} is 1 on every device"


def _device_count() -> int:
    count = int(cuda.cuDeviceGetCount())
    if not count:
        raise _Lacking("no device")
    return count


def _vmm() -> str:
    return _attribute("CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED")


def _descriptors() -> str:
    return _attribute("CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED")


def _rdma() -> str:
    return _attribute("CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED")


def _nvml() -> str:
    return f"{len(devices.handles())} devices counted by NVML"


def _mig_off() -> str:
    cut = [devices.uuid_of(device) for device in devices.handles() if devices.mig_enabled(device)]
    if cut:
        raise _Lacking(f"{cut[0]} is in MIG mode")
    return "no device is in MIG mode"


def _shared_mode() -> str:
    """An exclusive device takes no worker beside the target."""
    for device in devices.handles():
        mode = devices.compute_mode(device)
        if mode:
            word = "exclusive" if mode == _PER_PROCESS_EXCLUSIVE else f"compute mode {mode}"
            raise _Lacking(f"{devices.uuid_of(device)} is {word}")
    return "every device is in the default compute mode"


_CHECKS: Sequence[Check] = (
    ("bindings", _bindings, "pip install 'cuda-bindings>=12.9.1'"),
    ("driver", _driver, "install the NVIDIA driver (libcuda.so.1)"),
    ("nvml", _nvml, "install the NVIDIA driver's NVML (libnvidia-ml.so.1) and nvidia-ml-py"),
    ("device", _device, "is a device visible here? try nvidia-smi"),
    ("driver_branch", _branch, _NEWER_DRIVER),
    ("checkpoint_api", _checkpoint_api, _NEWER_DRIVER),
    ("virtual_memory", _vmm, "hand-over needs a device with virtual memory management"),
    ("descriptors", _descriptors, "hand-over needs memory that exports as file descriptors (Linux, not WSL)"),
    ("rdma", _rdma, "only programs that give device memory to a network card miss this"),
    ("mig_off", _mig_off, "nvidia-smi -mig 0: the driver cannot checkpoint MIG instances"),
    ("shared_mode", _shared_mode, "nvidia-smi -c DEFAULT: the worker needs a context beside the job's"),
)
