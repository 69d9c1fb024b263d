"""A few calls over cuda-python, for the programs that the simulator's tests run. Imported in those programs only."""

import array
import ctypes
import os
import socket
import sys
import time  # noqa: F401 (programs use it through their star import)
from typing import Any

import cuda.bindings.driver as cu

MiB = 1 << 20
POSIX_FD = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ_WRITE = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
READ = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ


class Failed(Exception):
    """A driver call that did not succeed; `code` is its number."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def ck(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise Failed(int(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def use(device: int = 0) -> Any:
    ck(cu.cuInit(0))
    context = ck(cu.cuDevicePrimaryCtxRetain(device))
    ck(cu.cuCtxSetCurrent(context))
    return context


def used(device: int = 0) -> int:
    """Bytes in use on a device, its contexts included; needs a current context of that device."""
    free, total = ck(cu.cuMemGetInfo())
    return int(total) - int(free)


def properties(device: int = 0, exportable: bool = True) -> Any:
    wanted = cu.CUmemAllocationProp()
    wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = device
    if exportable:
        wanted.requestedHandleTypes = POSIX_FD
    return wanted


def create(size: int, device: int = 0, exportable: bool = True) -> Any:
    return ck(cu.cuMemCreate(size, properties(device, exportable), 0))


def access(address: int, size: int, device: int = 0, flags: Any = READ_WRITE) -> None:
    wanted = cu.CUmemAccessDesc()
    wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = device
    wanted.flags = flags
    ck(cu.cuMemSetAccess(address, size, [wanted], 1))


def mapped(handle: Any, size: int, device: int = 0, at: int = 0) -> int:
    address = at or int(ck(cu.cuMemAddressReserve(size, 0, 0, 0)))
    ck(cu.cuMemMap(address, size, 0, handle, 0))
    access(address, size, device)
    return address


def export(handle: Any) -> int:
    return int(ck(cu.cuMemExportToShareableHandle(handle, POSIX_FD, 0)))


def take(fd: int) -> Any:
    handle = ck(cu.cuMemImportFromShareableHandle(fd, POSIX_FD))
    os.close(fd)
    return handle


def write(address: int, data: bytes) -> None:
    ck(cu.cuMemcpyHtoD(address, data, len(data)))


def read(address: int, size: int) -> bytes:
    data = bytearray(size)
    ck(cu.cuMemcpyDtoH(data, address, size))
    return bytes(data)


def code(result: tuple[Any, ...]) -> int:
    return int(result[0])


class Kernels:
    """The kernels that ship with the simulator."""

    def __init__(self) -> None:
        self.module = ck(cu.cuModuleLoad(os.environ["GCR_SIM_KERNELS"].encode()))

    def launch(self, name: str, *args: tuple[Any, int], stream: int = 0) -> None:
        function = ck(cu.cuModuleGetFunction(self.module, name.encode()))
        types, values = tuple(t for t, _ in args), tuple(v for _, v in args)
        ck(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, (values, types), 0))


U64, U32, F32 = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_float


def send_fd(channel: socket.socket, fd: int) -> None:
    socket.send_fds(channel, [b"f"], [fd])


def receive_fd(channel: socket.socket) -> int:
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    return descriptors[0]


def channel() -> socket.socket:
    """The socket the test gave us as standard input."""
    return socket.socket(fileno=os.dup(0))


def say(*words: object) -> None:
    print(*words, flush=True)


def wait_for_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise SystemExit("the test is gone")
    return line.strip()


def words(data: bytes) -> "array.array[int]":
    return array.array("Q", data)
