"""hip-python, of either generation, as `device.Device`."""

import ctypes
from collections.abc import Callable
from typing import Any

from hip import hip
from hip_calls import U64, check, code, create, fetched, filled, mapped, properties, reserve, write

TO_DEVICE = hip.hipMemcpyKind.hipMemcpyDeviceToDevice
MINIMUM = hip.hipMemAllocationGranularity_flags.hipMemAllocationGranularityMinimum
NON_BLOCKING = 1
BLOB = 64  # bytes of a legacy interprocess handle


class HipDevice:
    def __init__(self) -> None:
        self.enter()

    def enter(self) -> None:
        check(hip.hipSetDevice(0))

    def stream(self) -> Any:
        return check(hip.hipStreamCreateWithFlags(NON_BLOCKING))

    def wait(self, stream: Any) -> None:
        check(hip.hipStreamSynchronize(stream))

    def idle(self, stream: Any) -> bool:
        return code(hip.hipStreamQuery(stream)) == 0

    def allocate(self, size: int) -> int:
        return int(check(hip.hipMalloc(size)))

    def free(self, address: int, _stream: Any = None) -> None:
        check(hip.hipFree(address))  # waits for the device by itself

    def allocate_ordered(self, size: int, stream: Any) -> int:
        return int(check(hip.hipMallocAsync(size, stream)))

    def free_ordered(self, address: int, stream: Any) -> None:
        check(hip.hipFreeAsync(address, stream))

    def successor(self, stream: Any) -> Any:
        after, event = self.stream(), check(hip.hipEventCreateWithFlags(hip.hipEventDisableTiming))
        check(hip.hipEventRecord(event, stream))
        check(hip.hipStreamWaitEvent(after, event, 0))
        check(hip.hipEventDestroy(event))
        check(hip.hipStreamDestroy(stream))
        return after

    def write(self, address: int, data: bytes) -> None:
        write(address, data)

    def read(self, address: int, size: int) -> bytearray:
        return fetched(address, size)

    def fill(self, address: int, words: int, half: int, stream: Any) -> int:
        signed = half - (1 << 32) if half >> 31 else half
        check(hip.hipMemsetD32Async(address, signed, 2 * words, stream))
        return half << 32 | half

    def copy(self, to: int, source: int, size: int, stream: Any) -> None:
        check(hip.hipMemcpyAsync(to, source, size, TO_DEVICE, stream))

    def adder(self, module: str) -> Callable[[Any, int, int, int], None]:
        loaded = check(hip.hipModuleLoad(module.encode()))
        function = check(hip.hipModuleGetFunction(loaded, b"add"))

        def add(stream: Any, *values: int) -> None:
            packed = tuple(map(U64, values))
            check(hip.hipModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, None, packed))

        return add

    def handles(self, count: int, exportable: bool) -> tuple[int, int]:
        size = self.granule()
        base = reserve(count * size)
        for index in range(count):
            mapped(create(size, exportable=exportable), size, at=base + index * size)
        return base, size

    def physical(self, size: int) -> Any | None:
        result, *handle = hip.hipMemCreate(size, properties(exportable=False), 0)
        return None if int(result) else handle

    def granule(self) -> int:
        return int(check(hip.hipMemGetAllocationGranularity(properties(), MINIMUM)))

    # ---- with other processes: lending.LendingDevice

    def lend(self, address: int) -> bytes:
        handle = filled(hip.hipIpcMemHandle_st, hip.hipIpcGetMemHandle, address)
        return ctypes.string_at(handle.as_c_void_p().value, BLOB)

    def borrow(self, blob: bytes, flags: int) -> tuple[int, int]:
        handle = hip.hipIpcMemHandle_st()
        ctypes.memmove(handle.as_c_void_p().value, blob, BLOB)
        result = hip.hipIpcOpenMemHandle(handle, flags)
        return code(result), 0 if code(result) else int(result[1])

    def give_back(self, address: int) -> int:
        return code(hip.hipIpcCloseMemHandle(address))

    def try_to_free(self, address: int) -> int:
        return code(hip.hipFree(address))

    def range_of(self, address: int) -> tuple[int, int]:
        base, size = check(hip.hipMemGetAddressRange(address))
        return int(base), int(size)


open_device = HipDevice
