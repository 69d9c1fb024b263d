"""A few calls over gcr_ascend's binding, for the programs that the simulator's ACL tests run. Imported there only."""

import ctypes
import os
import socket
import sys
import threading
import time  # noqa: F401 (programs use it through their star import)
from collections.abc import Callable
from typing import Any

from gcr.errors import BackendMissing, DriverError, DriverTooOld  # noqa: F401
from gcr_ascend.abi import HostFunc, MemAccessDesc, MemLocation, PhysicalMemProp, ProcMemInfo, SnapShotCallBack  # noqa: F401
from gcr_ascend.acl import acl, attempt, has, table  # noqa: F401

MiB, GiB, TiB = 1 << 20, 1 << 30, 1 << 40
HBM, HBM_HUGE, HBM_HUGE1G = 1, 4, 10
H2H, H2D, D2H, D2D, ANY_KIND = range(5)
DEVICE = 1
READ_WRITE, READ, NO_ACCESS = 3, 1, 0
EVERYBODY = 1
LOCK_PRE, BACKUP_PRE, BACKUP_POST, RESTORE_PRE, RESTORE_POST, UNLOCK_POST = range(6)


def use(device: int = 0) -> None:
    acl.aclInit(None)
    acl.aclrtSetDevice(device)


def used() -> int:
    """Returns the bytes in use on the current device, by all processes."""
    free, total = acl.aclrtGetMemInfo(HBM)
    return int(total - free)


def properties(device: int = 0, attribute: int = HBM_HUGE) -> PhysicalMemProp:
    return PhysicalMemProp(memAttr=attribute, location=MemLocation(device, DEVICE))


def create(size: int, device: int = 0, attribute: int = HBM_HUGE) -> int:
    return int(acl.aclrtMallocPhysical(size, properties(device, attribute), 0))


def reserve(size: int, at: int = 0) -> int:
    return int(acl.aclrtReserveMemAddress(size, 0, at or None, 0))


def mapped(handle: int, size: int, at: int = 0) -> int:
    address = at or reserve(size)
    acl.aclrtMapMem(address, size, 0, handle, 0)
    return address


def export(handle: int, *pids: int) -> int:
    """Returns a shareable handle for these processes, or for all."""
    name = int(acl.aclrtMemExportToShareableHandle(handle, 0, 0 if pids else EVERYBODY))
    if pids:
        acl.aclrtMemSetPidToShareableHandle(name, (ctypes.c_int32 * len(pids))(*pids), len(pids))
    return name


def write(address: int, data: bytes) -> None:
    acl.aclrtMemcpy(address, len(data), data, len(data), H2D)


def read(address: int, size: int) -> bytes:
    return bytes(fetched(address, size))


def fetched(address: int, size: int) -> bytearray:
    """As `read`, without the second copy into bytes, which takes ten times as long as the first."""
    data = bytearray(size)
    acl.aclrtMemcpy((ctypes.c_char * size).from_buffer(data), size, address, size, D2H)
    return data


def code(name: str, *arguments: Any) -> int:
    return attempt(name, *arguments)[0]


def pattern(size: int, seed: int = 1) -> bytes:
    return bytes((seed + 7 * i) % 251 for i in range(4096)) * (size // 4096)


class Kernels:
    """The kernels that ship with the simulator."""

    def __init__(self) -> None:
        self.binary = acl.aclrtBinaryLoadFromFile(os.environ["GCR_SIM_KERNELS"].encode(), None)

    def function(self, name: str) -> int:
        return int(acl.aclrtBinaryGetFunction(self.binary, name.encode()))

    def launch(self, name: str, *words: int, stream: int | None = None) -> None:
        launch(self.function(name), words, stream)


def launch(function: int, words: tuple[int, ...], stream: int | None = None) -> None:
    """Arguments that are all 64 bits wide, from host memory."""
    arguments = (ctypes.c_uint64 * len(words))(*words)
    acl.aclrtLaunchKernelWithHostArgs(function, 1, stream, None, arguments, ctypes.sizeof(arguments), None, 0)


def lock() -> None:
    acl.aclrtSnapShotProcessLock(os.getpid(), None)


def backup() -> None:
    acl.aclrtSnapShotProcessBackup(os.getpid(), None)


def restore() -> None:
    acl.aclrtSnapShotProcessRestore(os.getpid(), None)


def unlock() -> None:
    acl.aclrtSnapShotProcessUnlock(os.getpid(), None)


class Aside:
    """A call made in a thread of its own, which may never return."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._thread = threading.Thread(target=call, daemon=True)
        self._thread.start()

    def returned(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()


def say(*words: object) -> None:
    print(*words, flush=True)


def wait_for_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise SystemExit("the test is gone")
    return line.strip()


def channel() -> socket.socket:
    """The socket the test gave us as standard input."""
    return socket.socket(fileno=os.dup(0))
