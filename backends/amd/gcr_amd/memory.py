"""One AMD device's calls for the data plane: implements gcr.vmm.VmmDriver on the HIP runtime.

Some ROCm releases (7.0 is good, 7.2 is not) keep the VRAM of unmapped and released memory for as long as its address
stays reserved. A worker gives whole ranges back with their addresses; where it takes single handles out of one, what
the runtime left there is mapped over (`leak.py`).
"""

import ctypes
from typing import Any

from gcr.devices import ordinal_in
from gcr.drain import DeviceMemory, HandleSpec
from gcr.errors import DriverError
from gcr.vmm import DeviceFull, descriptors
from gcr_amd import devices
from gcr_amd.hashing import HipHashKernel
from gcr_amd.leak import Release, map_over, probe
from gcr_amd.runtime import (
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_READY,
    OUT_OF_MEMORY,
    UNKNOWN,
    attempt,
    bindings,
    enum,
    hip,
    initialise,
    version,
)

_NON_BLOCKING = 1  # hipStreamNonBlocking
_DISABLE_TIMING = 2  # hipEventDisableTiming
_PORTABLE = 1  # hipHostRegisterPortable
_FOREIGN = dict.fromkeys((INVALID_VALUE, INVALID_HANDLE, UNKNOWN), descriptors.unknown)
_HANDLE_TYPE_OFFSET = 4  # bytes, of hipMemAllocationProp
_IMPORTS_BY_VALUE = (7, 1, 0)  # the first runtime that takes a descriptor itself; before, its address


class HipDevice:
    """Holds the device, whose primary context goes with the process."""

    unmaps_runs = False  # the whole of one mapping and no more, before ROCm 6.4

    def __init__(self, uuid: str) -> None:
        initialise()
        self._ordinal = ordinal_of(uuid)
        self._counter = devices.Counter.of(self._ordinal)
        self.enter()
        minimum = enum("hipMemAllocationGranularity_flags", "hipMemAllocationGranularityMinimum")
        self.granularity = int(hip.hipMemGetAllocationGranularity(allocation_prop(self._ordinal, None), minimum))
        self._release = release_of(self)

    def enter(self) -> None:
        if self._ordinal < 0:
            raise DriverError("this device was given back")
        hip.hipSetDevice(self._ordinal)

    # ---- physical memory --------------------------------------------------------------------------------------

    def check_descriptor(self, fd: int) -> None:
        """The kernel's are dma-bufs, which have a file type of their own; the simulator's are files."""
        genuine = descriptors.kind_of(fd).startswith("/dmabuf:")
        descriptors.refuse_unless(descriptors.is_file(fd) if self._counter.simulated else genuine, fd)

    def import_(self, fd: int) -> Any:
        descriptor = ctypes.c_int(fd)
        passed = fd if version() >= _IMPORTS_BY_VALUE else ctypes.addressof(descriptor)
        return hip.checked("hipMemImportFromShareableHandle", passed, posix_descriptor(), errors=_FOREIGN)

    def export(self, handle: Any) -> int:
        exported = ctypes.c_int(-1)
        hip.hipMemExportToShareableHandle(ctypes.addressof(exported), handle, posix_descriptor(), 0)
        return descriptors.closed_on_exec(exported.value)

    def create(self, size: int, spec: HandleSpec | None) -> Any:
        prop = allocation_prop(self._ordinal, spec)
        return hip.checked("hipMemCreate", size, prop, 0, errors={OUT_OF_MEMORY: DeviceFull})

    def release(self, handle: Any) -> None:
        hip.hipMemRelease(handle)

    # ---- addresses --------------------------------------------------------------------------------------------

    def reserve(self, size: int, wanted: int = 0) -> int:
        """`wanted`: an address to try; the runtime may give another, and say so only by giving it."""
        return int(hip.hipMemAddressReserve(size, 0, wanted or None, 0))

    def unreserve(self, address: int, size: int) -> None:
        hip.hipMemAddressFree(address, size)

    def map(self, address: int, size: int, handle: Any) -> None:
        hip.hipMemMap(address, size, 0, handle, 0)

    def allow(self, address: int, size: int) -> None:
        hip.hipMemSetAccess(address, size, _read_write(self._ordinal), 1)

    def unmap(self, address: int, size: int) -> None:
        self.unmap_alone(address, size)
        if self._release is Release.MAP_OVER:
            map_over(address, size)

    def unmap_alone(self, address: int, size: int) -> None:
        hip.hipMemUnmap(address, size)

    # ---- host memory, copies, room ----------------------------------------------------------------------------

    def stream(self) -> "HipStream":
        return HipStream()

    def pin(self, address: int, size: int) -> None:
        hip.hipHostRegister(address, size, _PORTABLE)

    def unpin(self, address: int) -> None:
        hip.hipHostUnregister(address)

    def hash_kernel(self) -> HipHashKernel:
        return HipHashKernel(self._counter.simulated)

    def free_bytes(self) -> int:
        free, _total = hip.hipMemGetInfo()
        return int(free)

    def memory(self) -> DeviceMemory:
        return self._counter.memory()

    def close(self) -> None:
        self._ordinal = -1


class HipStream:
    """Implements gcr.vmm.WaitsForEvents: a non-blocking stream of the current device."""

    def __init__(self) -> None:
        self._stream = hip.hipStreamCreateWithFlags(_NON_BLOCKING)

    def device_to_host(self, host: int, device: int, size: int) -> None:
        hip.hipMemcpyDtoHAsync(host, device, size, self._stream)

    def host_to_device(self, device: int, host: int, size: int) -> None:
        hip.hipMemcpyHtoDAsync(device, host, size, self._stream)

    def device_to_device(self, target: int, source: int, size: int) -> None:
        hip.hipMemcpyDtoDAsync(target, source, size, self._stream)

    def mark(self, *, timed: bool) -> Any:
        event = hip.hipEventCreateWithFlags(0 if timed else _DISABLE_TIMING)
        hip.hipEventRecord(event, self._stream)
        return event

    def mark_again(self, event: Any) -> None:
        hip.hipEventRecord(event, self._stream)

    def wait_for(self, event: Any) -> None:
        hip.hipEventSynchronize(event)

    def passed(self, event: Any) -> bool:
        return hip.ready("hipEventQuery", event, not_yet=NOT_READY)

    def seconds(self, first: Any, last: Any) -> float:
        return float(hip.hipEventElapsedTime(first, last)) / 1000.0

    def forget(self, event: Any) -> None:
        hip.hipEventDestroy(event)

    def idle(self) -> bool:
        return attempt("hipStreamQuery", self._stream)[0] != NOT_READY

    def close(self) -> None:
        hip.hipStreamDestroy(self._stream)


def release_of(device: HipDevice) -> Release:
    """Found out by trying. No room to try: a mapping too many does no harm."""
    try:
        return probe(device)
    except DeviceFull:
        return Release.MAP_OVER


def ordinal_of(uuid: str) -> int:
    """The runtime's ordinal of a device. Raises BackendMissing."""
    known = map(devices.uuid_of, range(int(hip.hipGetDeviceCount())))
    return ordinal_in(known, uuid, "is it hidden by HIP_VISIBLE_DEVICES?")


def allocation_prop(ordinal: int, spec: HandleSpec | None) -> Any:
    """A hipMemAllocationProp: exportable and as the program asked, or plain when there is no spec."""
    prop = bindings().hipMemAllocationProp()
    prop.location.type = enum("hipMemLocationType", "hipMemLocationTypeDevice")
    prop.location.id = ordinal
    prop.type = bindings().hipMemAllocationType(spec.type if spec else 1)
    if spec is None:
        return prop
    # An anonymous union in the header, which hip-python 7.2 and 10 leave out: the second 32-bit word.
    ctypes.c_int32.from_address(prop.as_c_void_p().value + _HANDLE_TYPE_OFFSET).value = int(posix_descriptor())
    prop.allocFlags.compressionType = spec.compression
    prop.allocFlags.gpuDirectRDMACapable = spec.rdma_capable
    prop.allocFlags.usage = spec.usage
    return prop


def posix_descriptor() -> Any:
    return enum("hipMemAllocationHandleType", "hipMemHandleTypePosixFileDescriptor")


def _read_write(ordinal: int) -> Any:
    access = bindings().hipMemAccessDesc()
    access.location.type = enum("hipMemLocationType", "hipMemLocationTypeDevice")
    access.location.id = ordinal
    access.flags = enum("hipMemAccessFlags", "hipMemAccessFlagsProtReadWrite")
    return access
