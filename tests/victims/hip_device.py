"""HIP's runtime as `device.Device`."""

import ctypes
from collections.abc import Callable
from typing import Any

from hip_runtime import (
    DEFAULT,
    DEVICE,
    DEVICE_TO_DEVICE,
    DISABLE_TIMING,
    MINIMUM,
    NON_BLOCKING,
    PINNED,
    POSIX,
    READ_WRITE,
    AccessDesc,
    AllocationProp,
    IpcMemHandle,
    Location,
    hip,
)

HERE = Location(DEVICE, 0)
BY_VALUE_SINCE = 70100000  # 7.1: before, a descriptor was imported by its address


class HipDevice:
    def __init__(self) -> None:
        self.enter()

    def enter(self) -> None:
        hip.hipSetDevice(0)

    def stream(self) -> Any:
        return hip.hipStreamCreateWithFlags(NON_BLOCKING)

    def wait(self, stream: Any) -> None:
        hip.hipStreamSynchronize(stream)

    def idle(self, stream: Any) -> bool:
        return hip.attempt("hipStreamQuery", stream)[0] == 0

    def allocate(self, size: int) -> int:
        return int(hip.hipMalloc(size))

    def free(self, address: int, _stream: Any = None) -> None:
        hip.hipFree(address)  # waits for the device by itself

    def allocate_ordered(self, size: int, stream: Any) -> int:
        return int(hip.hipMallocAsync(size, stream))

    def free_ordered(self, address: int, stream: Any) -> None:
        hip.hipFreeAsync(address, stream)

    def successor(self, stream: Any) -> Any:
        after, event = self.stream(), hip.hipEventCreateWithFlags(DISABLE_TIMING)
        hip.hipEventRecord(event, stream)
        hip.hipStreamWaitEvent(after, event, 0)
        hip.hipEventDestroy(event)
        hip.hipStreamDestroy(stream)
        return after

    def write(self, address: int, data: bytes) -> None:
        hip.hipMemcpy(address, data, len(data), DEFAULT)

    def read(self, address: int, size: int) -> bytearray:
        data = bytearray(size)
        hip.hipMemcpy((ctypes.c_char * size).from_buffer(data), address, size, DEFAULT)
        return data

    def fill(self, address: int, words: int, half: int, stream: Any) -> int:
        hip.hipMemsetD32Async(address, half, 2 * words, stream)
        return half << 32 | half

    def copy(self, to: int, source: int, size: int, stream: Any) -> None:
        hip.hipMemcpyAsync(to, source, size, DEVICE_TO_DEVICE, stream)

    def adder(self, module: str) -> Callable[[Any, int, int, int], None]:
        loaded = hip.hipModuleLoad(module.encode())
        function = hip.hipModuleGetFunction(loaded, b"add")

        def add(stream: Any, *values: int) -> None:
            packed = [ctypes.c_uint64(value) for value in values]
            pointers = (ctypes.c_void_p * len(packed))(*map(ctypes.addressof, packed))
            hip.hipModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)

        return add

    def handles(self, count: int, exportable: bool) -> tuple[int, int]:
        prop = properties(POSIX if exportable else 0)
        size = self.granule()
        base = int(hip.hipMemAddressReserve(count * size, 0, None, 0))
        for index in range(count):
            hip.hipMemMap(base + index * size, size, 0, hip.hipMemCreate(size, prop, 0), 0)
            hip.hipMemSetAccess(base + index * size, size, AccessDesc(HERE, READ_WRITE), 1)
        return base, size

    def physical(self, size: int) -> Any | None:
        return hip.attempt("hipMemCreate", size, properties(0), 0)[1]

    def granule(self) -> int:
        return int(hip.hipMemGetAllocationGranularity(properties(), MINIMUM))

    # ---- with other processes: lending.LendingDevice

    def lend(self, address: int) -> bytes:
        return bytes(hip.hipIpcGetMemHandle(address))

    def borrow(self, blob: bytes, flags: int) -> tuple[int, int]:
        code, address = hip.attempt("hipIpcOpenMemHandle", IpcMemHandle.from_buffer_copy(blob), flags)
        return code, address or 0

    def give_back(self, address: int) -> int:
        return hip.attempt("hipIpcCloseMemHandle", address)[0]

    def try_to_free(self, address: int) -> int:
        return hip.attempt("hipFree", address)[0]

    def range_of(self, address: int) -> tuple[int, int]:
        base, size = hip.hipMemGetAddressRange(address)
        return int(base), int(size)

    # ---- lending.SharingDevice

    def make(self, size: int) -> Any:
        return hip.hipMemCreate(size, properties(), 0)

    def map(self, handle: Any, size: int) -> int:
        address = int(hip.hipMemAddressReserve(size, 0, None, 0))
        hip.hipMemMap(address, size, 0, handle, 0)
        hip.hipMemSetAccess(address, size, AccessDesc(HERE, READ_WRITE), 1)
        return address

    def unmap(self, address: int, size: int) -> None:
        hip.hipMemUnmap(address, size)

    def release(self, handle: Any) -> None:
        hip.hipMemRelease(handle)

    def exported(self, handle: Any) -> int:
        descriptor = ctypes.c_int(-1)
        hip.hipMemExportToShareableHandle(ctypes.byref(descriptor), handle, POSIX, 0)
        return descriptor.value

    def imported(self, descriptor: int) -> Any:
        by_value = hip.hipRuntimeGetVersion() >= BY_VALUE_SINCE
        return hip.hipMemImportFromShareableHandle(
            descriptor if by_value else ctypes.byref(ctypes.c_int(descriptor)), POSIX
        )


def properties(shareable: int = POSIX) -> AllocationProp:
    return AllocationProp(PINNED, shareable, HERE)


open_device = HipDevice
