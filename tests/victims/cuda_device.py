"""CUDA's driver API as `device.Device`."""

import ctypes
from collections.abc import Callable
from typing import Any

from cuda_driver import (
    DEVICE,
    DISABLE_TIMING,
    NON_BLOCKING,
    PINNED,
    POSIX,
    READ_WRITE,
    AccessDesc,
    AllocationProp,
    IpcMemHandle,
    Location,
    driver,
)

HERE = Location(DEVICE, 0)


class CudaDevice:
    def __init__(self) -> None:
        driver.cuInit(0)
        self.context = driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0))
        self.enter()

    def enter(self) -> None:
        driver.cuCtxSetCurrent(self.context)

    def stream(self) -> Any:
        return driver.cuStreamCreate(NON_BLOCKING)

    def wait(self, stream: Any) -> None:
        driver.cuStreamSynchronize(stream)

    def idle(self, stream: Any) -> bool:
        return driver.attempt("cuStreamQuery", stream)[0] == 0

    def allocate(self, size: int) -> int:
        return int(driver.cuMemAlloc_v2(size))

    def free(self, address: int, _stream: Any = None) -> None:
        driver.cuMemFree_v2(address)  # waits for the device by itself

    def allocate_ordered(self, size: int, stream: Any) -> int:
        return int(driver.cuMemAllocAsync(size, stream))

    def free_ordered(self, address: int, stream: Any) -> None:
        driver.cuMemFreeAsync(address, stream)

    def successor(self, stream: Any) -> Any:
        after, event = self.stream(), driver.cuEventCreate(DISABLE_TIMING)
        driver.cuEventRecord(event, stream)
        driver.cuStreamWaitEvent(after, event, 0)
        driver.cuEventDestroy_v2(event)
        driver.cuStreamDestroy_v2(stream)
        return after

    def write(self, address: int, data: bytes) -> None:
        driver.cuMemcpyHtoD_v2(address, data, len(data))

    def read(self, address: int, size: int) -> bytearray:
        """Copies to the host. A second copy, into bytes, would take ten times as long as the first."""
        data = bytearray(size)
        driver.cuMemcpyDtoH_v2((ctypes.c_char * size).from_buffer(data), address, size)
        return data

    def fill(self, address: int, words: int, half: int, stream: Any) -> int:
        driver.cuMemsetD32Async(address, half, 2 * words, stream)
        return half << 32 | half

    def copy(self, to: int, source: int, size: int, stream: Any) -> None:
        driver.cuMemcpyDtoDAsync_v2(to, source, size, stream)

    def adder(self, module: str) -> Callable[[Any, int, int, int], None]:
        from pathlib import Path  # here, since most programs start in less time without it

        loaded = driver.cuModuleLoadData(Path(module).read_bytes())
        function = driver.cuModuleGetFunction(loaded, b"add")

        def add(stream: Any, *values: int) -> None:
            launch(function, 64, 256, stream, *map(ctypes.c_uint64, values))

        return add

    def handles(self, count: int, exportable: bool) -> tuple[int, int]:
        prop = properties(POSIX if exportable else 0)
        size = int(driver.cuMemGetAllocationGranularity(prop, 0))
        base = int(driver.cuMemAddressReserve(count * size, 0, 0, 0))
        for index in range(count):
            driver.cuMemMap(base + index * size, size, 0, driver.cuMemCreate(size, prop, 0), 0)
        driver.cuMemSetAccess(base, count * size, AccessDesc(HERE, READ_WRITE), 1)
        return base, size

    def physical(self, size: int) -> Any | None:
        return driver.attempt("cuMemCreate", size, properties(0), 0)[1]

    def granule(self) -> int:
        return int(driver.cuMemGetAllocationGranularity(properties(), 0))

    # ---- with other processes: lending.LendingDevice

    def lend(self, address: int) -> bytes:
        return bytes(driver.cuIpcGetMemHandle(address))

    def borrow(self, blob: bytes, flags: int) -> tuple[int, int]:
        code, address = driver.attempt("cuIpcOpenMemHandle_v2", IpcMemHandle.from_buffer_copy(blob), flags)
        return code, address or 0

    def give_back(self, address: int) -> int:
        return driver.attempt("cuIpcCloseMemHandle", address)[0]

    def try_to_free(self, address: int) -> int:
        return driver.attempt("cuMemFree_v2", address)[0]

    def range_of(self, address: int) -> tuple[int, int]:
        base, size = driver.cuMemGetAddressRange_v2(address)
        return int(base), int(size)

    # ---- lending.SharingDevice

    def make(self, size: int) -> Any:
        return driver.cuMemCreate(size, properties(), 0)

    def map(self, handle: Any, size: int) -> int:
        address = int(driver.cuMemAddressReserve(size, 0, 0, 0))
        driver.cuMemMap(address, size, 0, handle, 0)
        driver.cuMemSetAccess(address, size, AccessDesc(HERE, READ_WRITE), 1)
        return address

    def unmap(self, address: int, size: int) -> None:
        driver.cuMemUnmap(address, size)

    def release(self, handle: Any) -> None:
        driver.cuMemRelease(handle)

    def exported(self, handle: Any) -> int:
        descriptor = ctypes.c_int(-1)
        driver.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, POSIX, 0)
        return descriptor.value

    def imported(self, descriptor: int) -> Any:
        return driver.cuMemImportFromShareableHandle(descriptor, POSIX)


def properties(shareable: int = POSIX) -> AllocationProp:
    return AllocationProp(PINNED, shareable, HERE)


def launch(function: Any, blocks: int, threads: int, stream: Any, *values: Any) -> None:
    """Starts a kernel with these C values as its arguments."""
    pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None)


open_device = CudaDevice
