"""Ascend's runtime as `device.Device`."""

from collections.abc import Callable
from typing import Any

from acl_calls import D2D, HBM_HUGE, MiB, acl, attempt, create, fetched, launch, mapped, properties, reserve, use, write

HUGE_PAGE = 2 * MiB


class AclDevice:
    def __init__(self) -> None:
        use(0)

    def enter(self) -> None:
        acl.aclrtSetDevice(0)

    def stream(self) -> Any:
        return int(acl.aclrtCreateStream())

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
        write(address, data)

    def read(self, address: int, size: int) -> bytearray:
        return fetched(address, size)

    def fill(self, address: int, words: int, half: int, stream: Any) -> int:
        acl.aclrtMemsetAsync(address, 8 * words, half & 0xFF, 8 * words, stream)
        return (half & 0xFF) * 0x0101010101010101

    def copy(self, to: int, source: int, size: int, stream: Any) -> None:
        acl.aclrtMemcpyAsync(to, size, source, size, D2D, stream)

    def adder(self, module: str) -> Callable[[Any, int, int, int], None]:
        binary = acl.aclrtBinaryLoadFromFile(module.encode(), None)
        function = acl.aclrtBinaryGetFunction(binary, b"add")

        def add(stream: Any, *values: int) -> None:
            launch(function, values, stream)

        return add

    def handles(self, count: int, _exportable: bool = True) -> tuple[int, int]:
        base = reserve(count * HUGE_PAGE)
        for index in range(count):
            mapped(create(HUGE_PAGE), HUGE_PAGE, at=base + index * HUGE_PAGE)
        return base, HUGE_PAGE

    def physical(self, size: int) -> Any | None:
        result, handle = attempt("aclrtMallocPhysical", size, properties(0, HBM_HUGE), 0)
        return None if result else handle

    def granule(self) -> int:
        return HUGE_PAGE


open_device = AclDevice
