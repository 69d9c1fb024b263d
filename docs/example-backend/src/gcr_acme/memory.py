"""One acme device's calls for the data plane: implements gcr.vmm.VmmDriver."""

from ctypes import byref, c_double, c_int, c_uint64, c_void_p
from typing import Any

from gcr.drain import DeviceMemory, HandleSpec
from gcr.errors import DriverError
from gcr.vmm import DeviceFull, descriptors
from gcr_acme import devices
from gcr_acme.driver import Result, acme


class AcmeDevice:
    """Holds the device's context until `close`."""

    unmaps_runs = True

    def __init__(self, uuid: str) -> None:
        self._ordinal = devices.ordinal_of(uuid)
        self._closed = False
        self.enter()
        granularity = c_uint64()
        acme.acmeGranularity(byref(granularity))
        self.granularity = granularity.value

    def enter(self) -> None:
        if self._closed:
            raise DriverError("this device was given back")
        acme.acmeSetDevice(c_int(self._ordinal))

    # ---- physical memory --------------------------------------------------------------------------------------

    def check_descriptor(self, fd: int) -> None:
        """The simulated driver's descriptors are files. Raises NotDeviceMemory."""
        descriptors.refuse_unless(descriptors.is_file(fd), fd)

    def import_(self, fd: int) -> int:
        handle = c_uint64()
        acme.checked("acmeImport", c_int(fd), byref(handle), errors={Result.INVALID: descriptors.unknown})
        return handle.value

    def export(self, handle: int) -> int:
        fd = c_int()
        acme.acmeExport(handle, byref(fd))
        return descriptors.closed_on_exec(fd.value)

    def create(self, size: int, spec: HandleSpec | None) -> int:
        handle = c_uint64()
        acme.checked("acmeCreate", c_int(self._ordinal), size, byref(handle), errors={Result.NO_MEMORY: DeviceFull})
        return handle.value

    def release(self, handle: int) -> None:
        acme.acmeRelease(handle)

    # ---- addresses --------------------------------------------------------------------------------------------

    def reserve(self, size: int) -> int:
        address = c_uint64()
        acme.acmeReserve(size, 0, byref(address))
        return address.value

    def unreserve(self, address: int, size: int) -> None:
        acme.acmeUnreserve(address, size)

    def map(self, address: int, size: int, handle: int) -> None:
        acme.acmeMap(address, size, handle)

    def allow(self, address: int, size: int) -> None:
        """Mapping gave access."""

    def unmap(self, address: int, size: int) -> None:
        acme.acmeUnmap(address, size)

    # ---- host memory, copies, room ----------------------------------------------------------------------------

    def stream(self) -> "AcmeStream":
        return AcmeStream()

    def pin(self, address: int, size: int) -> None:
        acme.acmePin(c_void_p(address), size)

    def unpin(self, address: int) -> None:
        acme.acmeUnpin(c_void_p(address))

    def free_bytes(self) -> int:
        memory = self.memory()
        return memory.total - memory.used

    def memory(self) -> DeviceMemory:
        return devices.memory_of(self._ordinal)

    def close(self) -> None:
        self._closed = True
        acme.acmeResetDevice(c_int(self._ordinal))


class AcmeStream:
    """Implements gcr.vmm.CopyStream."""

    def __init__(self) -> None:
        self._stream = c_void_p()
        acme.acmeStreamCreate(byref(self._stream))

    def device_to_host(self, host: int, device: int, size: int) -> None:
        acme.acmeCopyAsync(host, device, size, self._stream)

    def host_to_device(self, device: int, host: int, size: int) -> None:
        acme.acmeCopyAsync(device, host, size, self._stream)

    def device_to_device(self, target: int, source: int, size: int) -> None:
        acme.acmeCopyAsync(target, source, size, self._stream)

    def mark(self, *, timed: bool) -> Any:
        event = c_void_p()
        acme.acmeEventRecord(self._stream, byref(event))
        return event

    def passed(self, event: Any) -> bool:
        return acme.ready("acmeEventQuery", event, not_yet=Result.NOT_READY)

    def seconds(self, first: Any, last: Any) -> float:
        found = c_double()
        acme.acmeEventSeconds(first, last, byref(found))
        return found.value

    def forget(self, event: Any) -> None:
        acme.acmeEventDestroy(event)

    def idle(self) -> bool:
        return acme.attempt("acmeStreamQuery", self._stream)[0] != Result.NOT_READY

    def close(self) -> None:
        acme.acmeStreamDestroy(self._stream)
