"""Ascend's runtime as `device.Device`."""

import ctypes
from collections.abc import Callable
from typing import Any

from acl_runtime import (
    DEVICE,
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HBM_HUGE,
    HOST_TO_DEVICE,
    MemLocation,
    PhysicalMemProp,
    acl,
    attempt,
)

HUGE_PAGE = 2 << 20


class AclDevice:
    def __init__(self) -> None:
        acl.aclInit(None)
        self.enter()

    def enter(self) -> None:
        acl.aclrtSetDevice(0)

    def stream(self) -> Any:
        return acl.aclrtCreateStream()

    def wait(self, stream: Any) -> None:
        acl.aclrtSynchronizeStream(stream)

    def idle(self, stream: Any) -> bool:
        return int(acl.aclrtStreamQuery(stream)) == 0

    def allocate(self, size: int, policy: int = 0) -> int:
        return int(acl.aclrtMalloc(size, policy))

    def free(self, address: int, stream: Any = None) -> None:
        if stream:
            self.wait(stream)
        acl.aclrtFree(address)

    def write(self, address: int, data: bytes) -> None:
        acl.aclrtMemcpy(address, len(data), data, len(data), HOST_TO_DEVICE)

    def read(self, address: int, size: int) -> bytearray:
        data = bytearray(size)
        acl.aclrtMemcpy((ctypes.c_char * size).from_buffer(data), size, address, size, DEVICE_TO_HOST)
        return data

    def fill(self, address: int, words: int, half: int, stream: Any) -> int:
        acl.aclrtMemsetAsync(address, 8 * words, half & 0xFF, 8 * words, stream)
        return (half & 0xFF) * 0x0101010101010101

    def copy(self, to: int, source: int, size: int, stream: Any) -> None:
        acl.aclrtMemcpyAsync(to, size, source, size, DEVICE_TO_DEVICE, stream)

    def adder(self, module: str) -> Callable[[Any, int, int, int], None]:
        binary = acl.aclrtBinaryLoadFromFile(module.encode(), None)
        function = acl.aclrtBinaryGetFunction(binary, b"add")

        def add(stream: Any, *values: int) -> None:
            arguments = (ctypes.c_uint64 * len(values))(*values)
            size = ctypes.sizeof(arguments)
            acl.aclrtLaunchKernelWithHostArgs(function, 1, stream, None, arguments, size, None, 0)

        return add

    def handles(self, count: int, _exportable: bool = True) -> tuple[int, int]:
        base = reserve(count * HUGE_PAGE)
        for index in range(count):
            mapped(create(HUGE_PAGE), HUGE_PAGE, at=base + index * HUGE_PAGE)
        return base, HUGE_PAGE

    def physical(self, size: int) -> Any | None:
        return attempt("aclrtMallocPhysical", size, properties(HBM_HUGE), 0)[1]

    def granule(self) -> int:
        return HUGE_PAGE


def properties(attribute: int) -> PhysicalMemProp:
    return PhysicalMemProp(memAttr=attribute, location=MemLocation(0, DEVICE))


def create(size: int, attribute: int = HBM_HUGE) -> int:
    """Returns the handle of new physical memory."""
    return int(acl.aclrtMallocPhysical(size, properties(attribute), 0))


def reserve(size: int) -> int:
    return int(acl.aclrtReserveMemAddress(size, 0, None, 0))


def mapped(handle: int, size: int, at: int = 0) -> int:
    """Returns where physical memory is mapped now: at the address `at`, or anywhere."""
    address = at or reserve(size)
    acl.aclrtMapMem(address, size, 0, handle, 0)
    return address


open_device = AclDevice
