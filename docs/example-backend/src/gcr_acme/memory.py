"""One acme device's calls for the data plane: implements gcr.vmm.VmmDriver."""

import os
import stat
from typing import Any

from gcr.drain import DeviceMemory, HandleSpec
from gcr.errors import DriverError, NotDeviceMemory
from gcr.vmm import DeviceFull
from gcr_acme import devices
from gcr_acme.driver import Result, attempt, byref, c_double, c_int, c_uint64, c_void_p, call, failure


class AcmeDevice:
    """Holds the device's context until `close`."""

    unmaps_runs = True

    def __init__(self, uuid: str) -> None:
        self._ordinal = devices.ordinal_of(uuid)
        self._closed = False
        self.enter()
        granularity = c_uint64()
        call("acmeGranularity", byref(granularity))
        self.granularity = granularity.value

    def enter(self) -> None:
        if self._closed:
            raise DriverError("this device was given back")
        call("acmeSetDevice", c_int(self._ordinal))

    # ---- physical memory --------------------------------------------------------------------------------------

    def check_descriptor(self, fd: int) -> None:
        """The simulated driver's descriptors are files. Raises NotDeviceMemory."""
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise NotDeviceMemory(f"its descriptor is of type {stat.filemode(mode)[0]!r}")

    def import_(self, fd: int) -> int:
        handle = c_uint64()
        result = attempt("acmeImport", c_int(fd), byref(handle))
        if result == Result.INVALID:
            raise NotDeviceMemory("the driver does not know its descriptor")
        if result:
            raise failure("acmeImport", result)
        return handle.value

    def export(self, handle: int) -> int:
        fd = c_int()
        call("acmeExport", handle, byref(fd))
        os.set_inheritable(fd.value, False)
        return fd.value

    def create(self, size: int, spec: HandleSpec | None) -> int:
        handle = c_uint64()
        result = attempt("acmeCreate", c_int(self._ordinal), size, byref(handle))
        if result == Result.NO_MEMORY:
            raise DeviceFull
        if result:
            raise failure("acmeCreate", result)
        return handle.value

    def release(self, handle: int) -> None:
        call("acmeRelease", handle)

    # ---- addresses --------------------------------------------------------------------------------------------

    def reserve(self, size: int) -> int:
        address = c_uint64()
        call("acmeReserve", size, 0, byref(address))
        return address.value

    def unreserve(self, address: int, size: int) -> None:
        call("acmeUnreserve", address, size)

    def map(self, address: int, size: int, handle: int) -> None:
        call("acmeMap", address, size, handle)

    def allow(self, address: int, size: int) -> None:
        """Mapping gave access."""

    def unmap(self, address: int, size: int) -> None:
        call("acmeUnmap", address, size)

    # ---- host memory, copies, room ----------------------------------------------------------------------------

    def stream(self) -> "AcmeStream":
        return AcmeStream()

    def pin(self, address: int, size: int) -> None:
        call("acmePin", c_void_p(address), size)

    def unpin(self, address: int) -> None:
        call("acmeUnpin", c_void_p(address))

    def free_bytes(self) -> int:
        memory = self.memory()
        return memory.total - memory.used

    def memory(self) -> DeviceMemory:
        return devices.memory_of(self._ordinal)

    def close(self) -> None:
        self._closed = True
        call("acmeResetDevice", c_int(self._ordinal))


class AcmeStream:
    """Implements gcr.vmm.CopyStream."""

    def __init__(self) -> None:
        self._stream = c_void_p()
        call("acmeStreamCreate", byref(self._stream))

    def device_to_host(self, host: int, device: int, size: int) -> None:
        call("acmeCopyAsync", host, device, size, self._stream)

    def host_to_device(self, device: int, host: int, size: int) -> None:
        call("acmeCopyAsync", device, host, size, self._stream)

    def mark(self, *, timed: bool) -> Any:
        event = c_void_p()
        call("acmeEventRecord", self._stream, byref(event))
        return event

    def passed(self, event: Any) -> bool:
        result = attempt("acmeEventQuery", event)
        if result not in (Result.OK, Result.NOT_READY):
            raise failure("acmeEventQuery", result)
        return result == Result.OK

    def seconds(self, first: Any, last: Any) -> float:
        found = c_double()
        call("acmeEventSeconds", first, last, byref(found))
        return found.value

    def forget(self, event: Any) -> None:
        call("acmeEventDestroy", event)

    def idle(self) -> bool:
        return attempt("acmeStreamQuery", self._stream) != Result.NOT_READY

    def close(self) -> None:
        call("acmeStreamDestroy", self._stream)
