"""CUDA's driver API as `device.Device`."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuda.bindings import driver
from cuda_calls import check, download, primary_context

POSIX = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
BLOB = 64  # bytes of a legacy interprocess handle
DEVICE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE


class CudaDevice:
    def __init__(self) -> None:
        self.context = primary_context()

    def enter(self) -> None:
        check(driver.cuCtxSetCurrent(self.context))

    def stream(self) -> Any:
        return check(driver.cuStreamCreate(1))

    def wait(self, stream: Any) -> None:
        check(driver.cuStreamSynchronize(stream))

    def idle(self, stream: Any) -> bool:
        return int(driver.cuStreamQuery(stream)[0]) == 0

    def allocate(self, size: int) -> int:
        return int(check(driver.cuMemAlloc(size)))

    def free(self, address: int, _stream: Any = None) -> None:
        check(driver.cuMemFree(address))  # waits for the device by itself

    def allocate_ordered(self, size: int, stream: Any) -> int:
        return int(check(driver.cuMemAllocAsync(size, stream)))

    def free_ordered(self, address: int, stream: Any) -> None:
        check(driver.cuMemFreeAsync(address, stream))

    def successor(self, stream: Any) -> Any:
        after, event = self.stream(), check(driver.cuEventCreate(2))
        check(driver.cuEventRecord(event, stream))
        check(driver.cuStreamWaitEvent(after, event, 0))
        check(driver.cuEventDestroy(event))
        check(driver.cuStreamDestroy(stream))
        return after

    def write(self, address: int, data: bytes) -> None:
        check(driver.cuMemcpyHtoD(address, data, len(data)))

    def read(self, address: int, size: int) -> bytearray:
        return download(address, size)

    def fill(self, address: int, words: int, half: int, stream: Any) -> int:
        check(driver.cuMemsetD32Async(address, half, 2 * words, stream))
        return half << 32 | half

    def copy(self, to: int, source: int, size: int, stream: Any) -> None:
        check(driver.cuMemcpyDtoDAsync(to, source, size, stream))

    def adder(self, module: str) -> Callable[[Any, int, int, int], None]:
        loaded = check(driver.cuModuleLoadData(Path(module).read_bytes()))
        function = check(driver.cuModuleGetFunction(loaded, b"add"))
        types = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)

        def add(stream: Any, *values: int) -> None:
            check(driver.cuLaunchKernel(function, 64, 1, 1, 256, 1, 1, 0, stream, (values, types), 0))

        return add

    def handles(self, count: int, exportable: bool) -> tuple[int, int]:
        prop = properties(POSIX if exportable else POSIX.CU_MEM_HANDLE_TYPE_NONE)
        size = int(check(driver.cuMemGetAllocationGranularity(prop, 0)))
        base = int(check(driver.cuMemAddressReserve(count * size, 0, 0, 0)))
        for index in range(count):
            check(driver.cuMemMap(base + index * size, size, 0, check(driver.cuMemCreate(size, prop, 0)), 0))
        check(driver.cuMemSetAccess(base, count * size, [access()], 1))
        return base, size

    def physical(self, size: int) -> Any | None:
        result, handle = driver.cuMemCreate(size, properties(POSIX.CU_MEM_HANDLE_TYPE_NONE), 0)
        return None if int(result) else handle

    def granule(self) -> int:
        return int(check(driver.cuMemGetAllocationGranularity(properties(), 0)))

    # ---- with other processes: lending.LendingDevice

    def lend(self, address: int) -> bytes:
        return ctypes.string_at(check(driver.cuIpcGetMemHandle(address)).getPtr(), BLOB)

    def borrow(self, blob: bytes, flags: int) -> tuple[int, int]:
        handle = driver.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), blob, BLOB)
        result, *address = driver.cuIpcOpenMemHandle(handle, flags)
        return int(result), 0 if int(result) else int(address[0])

    def give_back(self, address: int) -> int:
        return int(driver.cuIpcCloseMemHandle(address)[0])

    def try_to_free(self, address: int) -> int:
        return int(driver.cuMemFree(address)[0])

    def range_of(self, address: int) -> tuple[int, int]:
        base, size = check(driver.cuMemGetAddressRange(address))
        return int(base), int(size)


def properties(shareable: Any = POSIX) -> Any:
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type, prop.location.id = DEVICE, 0
    prop.requestedHandleTypes = shareable
    return prop


def access() -> Any:
    wanted = driver.CUmemAccessDesc()
    wanted.location.type, wanted.location.id = DEVICE, 0
    wanted.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return wanted


open_device = CudaDevice
