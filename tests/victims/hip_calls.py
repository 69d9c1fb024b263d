"""hip-python, 7.2 and 10 alike, every result checked. Written without anything of gcr's: victims are the oracle."""

import ctypes
from typing import Any

from hip import hip

MIB = 1 << 20
POSIX_FD = hip.hipMemAllocationHandleType.hipMemHandleTypePosixFileDescriptor
DEFAULT = hip.hipMemcpyKind.hipMemcpyDefault
OLD_SIGNATURES = hip.HIP_VERSION_MINOR < 15  # 7.2: a struct to be filled is an argument, not a result


class Failed(Exception):
    """A call that did not succeed; `code` is its number."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def code(result: tuple[Any, ...]) -> int:
    return int(result[0])


def check(result: tuple[Any, ...]) -> Any:
    if code(result):
        raise Failed(code(result))
    return result[1] if len(result) == 2 else result[1:]


def filled(kind: Any, function: Any, *arguments: Any) -> Any:
    """The struct of type `kind` that `function` fills."""
    if not OLD_SIGNATURES:
        return check(function(*arguments))
    made = kind()
    check(function(made, *arguments))
    return made


def used(device: int = 0) -> int:
    """Bytes in use on a device, by whomever."""
    check(hip.hipSetDevice(device))
    free, total = check(hip.hipMemGetInfo())
    return int(total) - int(free)


def properties(device: int = 0, exportable: bool = True) -> Any:
    prop = hip.hipMemAllocationProp()
    prop.type = hip.hipMemAllocationType.hipMemAllocationTypePinned
    prop.location.type = hip.hipMemLocationType.hipMemLocationTypeDevice
    prop.location.id = device
    if exportable:  # hip-python has no name for the member of the anonymous union: the second word of the struct
        ctypes.c_int.from_address(prop.as_c_void_p().value + 4).value = int(POSIX_FD)
    return prop


def create(size: int, device: int = 0, exportable: bool = True) -> Any:
    return check(hip.hipMemCreate(size, properties(device, exportable), 0))


def access(address: int, size: int, device: int = 0, flags: Any = None) -> None:
    wanted = hip.hipMemAccessDesc()
    wanted.location.type = hip.hipMemLocationType.hipMemLocationTypeDevice
    wanted.location.id = device
    wanted.flags = hip.hipMemAccessFlags.hipMemAccessFlagsProtReadWrite if flags is None else flags
    check(hip.hipMemSetAccess(address, size, wanted, 1))


def reserve(size: int, at: int = 0) -> int:
    return int(check(hip.hipMemAddressReserve(size, 0, at, 0)))


def mapped(handle: Any, size: int, device: int = 0, at: int = 0) -> int:
    address = at or reserve(size)
    check(hip.hipMemMap(address, size, 0, handle, 0))
    access(address, size, device)
    return address


def export(handle: Any) -> int:
    descriptor = ctypes.c_int(-1)
    check(hip.hipMemExportToShareableHandle(descriptor, handle, POSIX_FD, 0))
    return descriptor.value


def write(address: int, data: bytes) -> None:
    check(hip.hipMemcpy(address, data, len(data), DEFAULT))


def read(address: int, size: int) -> bytes:
    return bytes(fetched(address, size))


def fetched(address: int, size: int) -> bytearray:
    """As `read`, without the second copy into bytes, which takes ten times as long as the first."""
    data = bytearray(size)
    check(hip.hipMemcpy(data, address, size, DEFAULT))
    return data


class Kernels:
    """The kernels of a module file, each started as one thread."""

    def __init__(self, path: str) -> None:
        self.module = check(hip.hipModuleLoad(path.encode()))

    def launch(self, name: str, *arguments: Any, stream: Any = None) -> None:
        """`arguments` are ctypes objects; hip-python packs them into one buffer."""
        function = check(hip.hipModuleGetFunction(self.module, name.encode()))
        check(hip.hipModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, None, arguments))


U64, U32 = ctypes.c_uint64, ctypes.c_uint32
