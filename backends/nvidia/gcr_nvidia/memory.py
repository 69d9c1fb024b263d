"""One NVIDIA device's calls for the data plane: implements gcr.vmm.VmmDriver on the CUDA driver API."""

import os
import stat
from typing import Any

from gcr.devices import is_simulated, ordinal_in, uuid_text
from gcr.drain import DeviceMemory, HandleSpec
from gcr.errors import DriverError, NoContext
from gcr.vmm import DeviceFull, descriptors
from gcr_nvidia import devices
from gcr_nvidia.driver import (
    DEVICE_UNAVAILABLE,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_READY,
    OUT_OF_MEMORY,
    UNKNOWN,
    attempt,
    bindings,
    cuda,
    enum,
    initialise,
)
from gcr_nvidia.hashing import CudaHashKernel

_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE
_FOREIGN = dict.fromkeys(
    (INVALID_VALUE, INVALID_HANDLE, UNKNOWN), descriptors.unknown
)  # r580: 999 for /dev/null, files


class CudaDevice:
    """Holds the device's primary context until `close`."""

    unmaps_runs = True

    def __init__(self, uuid: str) -> None:
        initialise()
        self._ordinal = ordinal_of(uuid)
        self._counter = devices.handle(uuid)
        self._simulated = is_simulated(devices.name_of(self._counter))
        self._device = cuda.cuDeviceGet(self._ordinal)
        self._context: Any = retain_context(self._device, devices.compute_mode(self._counter))
        self.enter()
        minimum = enum("CUmemAllocationGranularity_flags", "CU_MEM_ALLOC_GRANULARITY_MINIMUM")
        self.granularity = int(cuda.cuMemGetAllocationGranularity(allocation_prop(self._ordinal, None), minimum))

    def enter(self) -> None:
        if self._context is None:
            raise DriverError("this device was given back")
        cuda.cuCtxSetCurrent(self._context)

    # ---- physical memory --------------------------------------------------------------------------------------

    def check_descriptor(self, fd: int) -> None:
        check_kind(fd, self._simulated)

    def import_(self, fd: int) -> Any:
        return cuda.checked("cuMemImportFromShareableHandle", fd, posix_descriptor(), errors=_FOREIGN)

    def export(self, handle: Any) -> int:
        return descriptors.closed_on_exec(int(cuda.cuMemExportToShareableHandle(handle, posix_descriptor(), 0)))

    def create(self, size: int, spec: HandleSpec | None) -> Any:
        prop = allocation_prop(self._ordinal, spec)
        return cuda.checked("cuMemCreate", size, prop, 0, errors={OUT_OF_MEMORY: DeviceFull})

    def release(self, handle: Any) -> None:
        cuda.cuMemRelease(handle)

    # ---- addresses --------------------------------------------------------------------------------------------

    def reserve(self, size: int) -> int:
        return int(cuda.cuMemAddressReserve(size, 0, 0, 0))

    def unreserve(self, address: int, size: int) -> None:
        cuda.cuMemAddressFree(address, size)

    def map(self, address: int, size: int, handle: Any) -> None:
        cuda.cuMemMap(address, size, 0, handle, 0)

    def allow(self, address: int, size: int) -> None:
        cuda.cuMemSetAccess(address, size, [_read_write(self._ordinal)], 1)

    def unmap(self, address: int, size: int) -> None:
        cuda.cuMemUnmap(address, size)

    # ---- host memory, copies, room ----------------------------------------------------------------------------

    def stream(self) -> "CudaStream":
        return CudaStream()

    def pin(self, address: int, size: int) -> None:
        cuda.cuMemHostRegister(address, size, _PORTABLE)

    def unpin(self, address: int) -> None:
        cuda.cuMemHostUnregister(address)

    def hash_kernel(self) -> CudaHashKernel:
        return CudaHashKernel(self._simulated)

    def free_bytes(self) -> int:
        free, _total = cuda.cuMemGetInfo()
        return int(free)

    def memory(self) -> DeviceMemory:
        return devices.memory(self._counter)

    def close(self) -> None:
        self._context = None
        cuda.cuDevicePrimaryCtxRelease(self._device)


class CudaStream:
    """Implements gcr.vmm.WaitsForEvents: a non-blocking stream of the current context."""

    def __init__(self) -> None:
        self._stream = cuda.cuStreamCreate(enum("CUstream_flags", "CU_STREAM_NON_BLOCKING").value)

    def device_to_host(self, host: int, device: int, size: int) -> None:
        cuda.cuMemcpyDtoHAsync(host, device, size, self._stream)

    def host_to_device(self, device: int, host: int, size: int) -> None:
        cuda.cuMemcpyHtoDAsync(device, host, size, self._stream)

    def device_to_device(self, target: int, source: int, size: int) -> None:
        cuda.cuMemcpyDtoDAsync(target, source, size, self._stream)

    def mark(self, *, timed: bool) -> Any:
        event = cuda.cuEventCreate(0 if timed else enum("CUevent_flags", "CU_EVENT_DISABLE_TIMING").value)
        cuda.cuEventRecord(event, self._stream)
        return event

    def mark_again(self, event: Any) -> None:
        cuda.cuEventRecord(event, self._stream)

    def wait_for(self, event: Any) -> None:
        cuda.cuEventSynchronize(event)

    def passed(self, event: Any) -> bool:
        return cuda.ready("cuEventQuery", event, not_yet=NOT_READY)

    def seconds(self, first: Any, last: Any) -> float:
        return float(cuda.cuEventElapsedTime(first, last)) / 1000.0

    def forget(self, event: Any) -> None:
        cuda.cuEventDestroy(event)

    def idle(self) -> bool:
        return attempt("cuStreamQuery", self._stream)[0] != NOT_READY

    def close(self) -> None:
        cuda.cuStreamDestroy(self._stream)


def retain_context(device: Any, compute_mode: int) -> Any:
    """The primary context. Raises NoContext when the device is full, or belongs to one process at a time.

    An exclusive device is not even tried: a context of ours would keep the program itself from coming back.
    """
    if compute_mode in (devices.EXCLUSIVE_THREAD, devices.EXCLUSIVE_PROCESS):
        raise NoContext("the device is in exclusive compute mode")
    full = dict.fromkeys((OUT_OF_MEMORY, DEVICE_UNAVAILABLE), NoContext)
    return cuda.checked("cuDevicePrimaryCtxRetain", device, errors=full)


def ordinal_of(uuid: str) -> int:
    """The driver's ordinal of a device. Raises BackendMissing."""
    known = (uuid_text(cuda.cuDeviceGetUuid(cuda.cuDeviceGet(n)).bytes) for n in range(cuda.cuDeviceGetCount()))
    return ordinal_in(known, uuid, "is it hidden by CUDA_VISIBLE_DEVICES?")


def check_kind(fd: int, simulated: bool) -> None:
    """The driver's descriptors are character devices, or have no type where it uses anonymous inodes; the
    simulator's are files. Raises NotDeviceMemory."""
    mode = os.fstat(fd).st_mode
    genuine = stat.S_ISCHR(mode) or stat.S_IFMT(mode) == 0
    descriptors.refuse_unless(descriptors.is_file(fd) if simulated else genuine, fd)


def allocation_prop(ordinal: int, spec: HandleSpec | None) -> Any:
    """A CUmemAllocationProp: exportable and as the program asked, or plain when there is no spec."""
    prop = bindings().CUmemAllocationProp()
    prop.location = _location(ordinal)
    prop.type = bindings().CUmemAllocationType(spec.type if spec else 1)
    if spec is None:
        return prop
    prop.requestedHandleTypes = posix_descriptor()
    prop.allocFlags.compressionType = spec.compression
    prop.allocFlags.gpuDirectRDMACapable = spec.rdma_capable
    prop.allocFlags.usage = spec.usage
    return prop


def posix_descriptor() -> Any:
    return enum("CUmemAllocationHandleType", "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR")


def _location(ordinal: int) -> Any:
    location = bindings().CUmemLocation()
    location.type = enum("CUmemLocationType", "CU_MEM_LOCATION_TYPE_DEVICE")
    location.id = ordinal
    return location


def _read_write(ordinal: int) -> Any:
    access = bindings().CUmemAccessDesc()
    access.location = _location(ordinal)
    access.flags = enum("CUmemAccess_flags", "CU_MEM_ACCESS_FLAGS_PROT_READWRITE")
    return access
