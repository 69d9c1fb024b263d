"""Devices as NVML counts them: memory in use, also by process, MIG, compute mode, driver version, link."""

import functools
import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gcr.backend import Device
from gcr.devices import if_present, same_uuid, where_it_has_bytes
from gcr.drain import DeviceMemory
from gcr.errors import BackendMissing, DriverError

_REMEDY = "install the NVIDIA driver's NVML (libnvidia-ml.so.1), and nvidia-ml-py beside gcr"
EXCLUSIVE_THREAD, EXCLUSIVE_PROCESS = 1, 3  # NVML's compute modes
OLDEST_BRANCH = 570  # the first driver with cuCheckpoint*
_starting = threading.Lock()


@functools.cache
def _library() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError as missing:
        raise BackendMissing(f"nvidia-ml-py cannot be imported: {missing}", hint=_REMEDY) from missing


@functools.cache
def _start() -> None:
    nvml = _library()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as absent:
        raise BackendMissing(f"nvmlInit: {absent}", hint=_REMEDY) from absent


def nvml(call: str, *arguments: object) -> Any:
    """An NVML call, NVML being started at the first. Raises BackendMissing without it, DriverError otherwise."""
    with _starting:
        _start()
    library = _library()
    try:
        return getattr(library, call)(*arguments)
    except library.NVMLError as failed:
        raise DriverError(f"{call}: {failed}") from failed


def _or(default: str, ask: Callable[[], str]) -> str:
    """Returns an answer that a device may lack: a virtual one has no link, an old one no such call."""
    try:
        return ask()
    except DriverError:
        return default


def handles() -> Sequence[Any]:
    """One NVML handle a device. Raises BackendMissing without NVML."""
    return [nvml("nvmlDeviceGetHandleByIndex", index) for index in range(nvml("nvmlDeviceGetCount"))]


def handle(uuid: str) -> Any:
    """The NVML handle of one device. Raises BackendMissing when there is none such."""
    for candidate in handles():
        if same_uuid(uuid_of(candidate), uuid):
            return candidate
    raise BackendMissing(f"no NVIDIA device {uuid} here")


def uuid_of(device: Any) -> str:
    return str(nvml("nvmlDeviceGetUUID", device))


def present() -> Sequence[Device]:
    """Every device; empty without a driver."""
    return if_present(lambda: [_describe(device) for device in handles()])


def _describe(device: Any) -> Device:
    counted = nvml("nvmlDeviceGetMemoryInfo", device)
    widest = _or("", lambda: link(device))
    return Device(uuid_of(device), name_of(device), int(counted.total), int(counted.used), widest)


def name_of(device: Any) -> str:
    return str(nvml("nvmlDeviceGetName", device))


def link(device: Any) -> str:
    """The widest the slot and the device agree on: an idle device lowers its current generation."""
    generation = nvml("nvmlDeviceGetMaxPcieLinkGeneration", device)
    width = nvml("nvmlDeviceGetMaxPcieLinkWidth", device)
    return f"PCIe {generation} x{width}"


def memory(device: Any) -> DeviceMemory:
    """Returns the memory in use on one device, and by process."""
    counted = nvml("nvmlDeviceGetMemoryInfo", device)
    by_pid: dict[int, int] = {}
    for process in nvml("nvmlDeviceGetComputeRunningProcesses", device):
        if process.usedGpuMemory is not None:
            by_pid[int(process.pid)] = int(process.usedGpuMemory)
    return DeviceMemory(used=int(counted.used), total=int(counted.total), by_pid=by_pid)


def bytes_of(pid: int) -> dict[str, int]:
    """Device UUID to the bytes a process has there; devices where it has none are left out."""
    return where_it_has_bytes({uuid_of(device): memory(device).by_pid.get(pid, 0) for device in handles()})


def mig_enabled(device: Any) -> bool:
    """Returns whether a device is cut into MIG instances; False for one without MIG."""
    return _or("0", lambda: str(nvml("nvmlDeviceGetMigMode", device)[0])) == "1"


def minor_number(device: Any) -> int:
    """N of /dev/nvidiaN."""
    return int(nvml("nvmlDeviceGetMinorNumber", device))


def compute_mode(device: Any) -> int:
    """0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process."""
    return int(nvml("nvmlDeviceGetComputeMode", device))


def driver_version() -> str:
    return str(nvml("nvmlSystemGetDriverVersion"))
