"""The capabilities here, each with its evidence and the remedy for its absence. Absence is an answer, not an error."""

import os
import platform
from collections.abc import Sequence

from gcr.backend import Capability
from gcr.devices import is_simulated
from gcr.errors import GcrError
from gcr.facilities import facility, resting_on
from gcr.probing import Check, Lacking, all_have, answers, named
from gcr_nvidia import devices, hashing, moving
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
_RESTORES_UNPREEMPTED = "580"  # branch
_PER_PROCESS_EXCLUSIVE = 3


def capabilities() -> Sequence[Capability]:
    checks = answers(CHECKS)
    return [*checks, *_facilities(checks)]


def _facilities(checks: Sequence[Capability]) -> Sequence[Capability]:
    return [
        resting_on("handoff", checks, ("driver", "device", "virtual_memory", "descriptors"), "memory as descriptors"),
        resting_on("copyout", checks, ("driver", "device", "virtual_memory"), "copies made by the agent"),
        resting_on("driver_strategy", checks, ("driver", "device", "checkpoint_api"), "the driver's own checkpoint"),
        _device_hash(checks),
        resting_on("control_state", checks, ("driver", "checkpoint_api"), "the driver's calls, from outside"),
        _device_map(checks),
        facility("verified_on", True, "NVIDIA H200, driver 580.159 (r580), CUDA 13.0; on no other"),
    ]


def _device_hash(checks: Sequence[Capability]) -> Capability:
    found = resting_on("device_hash", checks, ("driver", "device"), "")
    if not found.ok:
        return found
    try:
        return facility(found.name, True, _hash_kernel())
    except (Lacking, GcrError) as lacking:
        return facility(found.name, False, str(lacking), "device memory is copied to the host and hashed there")


def _device_map(checks: Sequence[Capability]) -> Capability:
    found = resting_on("device_map", checks, ("driver", "nvml", "checkpoint_api"), "")
    if not found.ok:
        return found
    try:
        return facility(found.name, True, moving.check({}))
    except GcrError as lacking:
        return facility(found.name, False, str(lacking), "a job comes back on the devices that it left")


def _hash_kernel() -> str:
    major = enum("CUdevice_attribute", "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR")
    for ordinal in range(int(cuda.cuDeviceGetCount())):
        found = int(cuda.cuDeviceGetAttribute(major, cuda.cuDeviceGet(ordinal)))
        if found < hashing.OLDEST_CAPABILITY:
            raise Lacking(f"device {ordinal} has compute capability {found}, older than {hashing.OLDEST_CAPABILITY}")
    return hashing.evidence(any(is_simulated(each.name) for each in devices.present()))


def _bindings() -> str:
    import importlib.metadata

    bindings()
    version = importlib.metadata.version("cuda-bindings")
    if tuple(int(part) for part in version.split(".")[:3]) < (12, 9, 1):
        raise Lacking(f"cuda-bindings {version} hold the GIL in driver calls")
    return f"cuda-bindings {version}"


def _driver() -> str:
    initialise()
    version = int(cuda.cuDriverGetVersion())
    return f"the driver speaks CUDA {version // 1000}.{version % 1000 // 10}"


def _device() -> str:
    return named(devices.present() if devices.handles() else [])


def _branch() -> str:
    version = devices.driver_version()
    if int(version.split(".")[0]) < devices.OLDEST_BRANCH:
        raise Lacking(f"driver {version}")
    return f"driver {version}"


def _preemption() -> str:
    """r580 restores contexts without a trap handler, so that their kernels are not preempted; docs/limitations.md."""
    version = devices.driver_version()
    simulated = all(is_simulated(each.name) for each in devices.present())
    if version.split(".")[0] == _RESTORES_UNPREEMPTED and not simulated:
        raise Lacking(f"driver {version} does not preempt the kernels of a program that it restored")
    return f"driver {version}: no trouble is known"


def _checkpoint_api() -> str:
    if platform.machine() == "aarch64":
        raise Lacking("the driver has no checkpoint on arm64")
    initialise()
    result, _ = attempt("cuCheckpointProcessGetState", os.getpid())
    if result not in (SUCCESS, INVALID_VALUE, NOT_INITIALIZED):  # what it says of a process without a context
        raise Lacking(describe("cuCheckpointProcessGetState", result))
    return "cuCheckpointProcessGetState answers"


def _attribute(member: str, what: str) -> str:
    initialise()
    attribute = enum("CUdevice_attribute", member)
    count = int(cuda.cuDeviceGetCount())
    return all_have(what, lambda n: cuda.cuDeviceGetAttribute(attribute, cuda.cuDeviceGet(n)), count)


def _vmm() -> str:
    return _attribute("CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "virtual memory management")


def _descriptors() -> str:
    return _attribute(
        "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", "memory that exports as file descriptors"
    )


def _rdma() -> str:
    return _attribute("CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED", "GPUDirect RDMA for mapped memory")


def _nvml() -> str:
    return f"{len(devices.handles())} devices counted by NVML"


def _mig_off() -> str:
    cut = [devices.uuid_of(device) for device in devices.handles() if devices.mig_enabled(device)]
    if cut:
        raise Lacking(f"{cut[0]} is in MIG mode")
    return "no device is in MIG mode"


def _shared_mode() -> str:
    """An exclusive device takes no worker beside the target."""
    for device in devices.handles():
        mode = devices.compute_mode(device)
        if mode:
            word = "exclusive" if mode == _PER_PROCESS_EXCLUSIVE else f"compute mode {mode}"
            raise Lacking(f"{devices.uuid_of(device)} is {word}")
    return "every device is in the default compute mode"


CHECKS: Sequence[Check] = (
    Check("bindings", _bindings, "pip install 'cuda-bindings>=12.9.1'"),
    Check("driver", _driver, "install the NVIDIA driver (libcuda.so.1)"),
    Check("nvml", _nvml, "install the NVIDIA driver's NVML (libnvidia-ml.so.1) and nvidia-ml-py"),
    Check("device", _device, "is a device visible here? try nvidia-smi"),
    Check("driver_branch", _branch, _NEWER_DRIVER),
    Check("checkpoint_api", _checkpoint_api, _NEWER_DRIVER),
    Check("virtual_memory", _vmm, "hand-over needs a device with virtual memory management"),
    Check("descriptors", _descriptors, "hand-over needs memory that exports as file descriptors (Linux, not WSL)"),
    Check("rdma", _rdma, "only programs that give device memory to a network card miss this", needed=False),
    Check("preemption", _preemption, "give a GPU to one program at a time while kernels take seconds", needed=False),
    Check("mig_off", _mig_off, "nvidia-smi -mig 0: the driver cannot checkpoint MIG instances"),
    Check("shared_mode", _shared_mode, "nvidia-smi -c DEFAULT: the worker needs a context beside the job's"),
)
