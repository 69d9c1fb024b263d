"""Holds what may make control state slow: pinned host memory, contexts, memory that the driver carries.

Interactive: prints `ready`, answers each line with a digest of all that it holds.
"""

import argparse
import ctypes
import hashlib
import mmap
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "victims"))

from cuda.bindings import driver
from cuda_calls import check, download, primary_context
from dialogue import serve

MIB = 1 << 20
PORTABLE, MAPPED = 1, 2
PATTERN, STRIDE = 0x5EED, 4096


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device-mib", type=int, default=64)
    parser.add_argument("--allocated-mib", type=int, default=0, help="of host memory, by cuMemHostAlloc")
    parser.add_argument("--registered-mib", type=int, default=0, help="of host memory, by cuMemHostRegister")
    parser.add_argument("--pool-mib", type=int, default=0, help="of a pool that can be exported: the driver carries it")
    parser.add_argument("--contexts", type=int, default=0, help="besides the primary one")
    return parser.parse_args()


def _filled(address: int, mib: int) -> int:
    check(driver.cuMemsetD32(address, PATTERN, mib * MIB // 4))
    return address


def _allocated(mib: int) -> int:
    return _filled(int(check(driver.cuMemAlloc(mib * MIB))), mib)


def _pooled(mib: int) -> int:
    wanted = driver.CUmemPoolProps()
    wanted.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.handleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    address = int(check(driver.cuMemAllocFromPoolAsync(mib * MIB, check(driver.cuMemPoolCreate(wanted)), 0)))
    return _filled(address, mib)


class Holder:
    def __init__(self, options: argparse.Namespace) -> None:
        self.primary = primary_context()
        self.device = [(_allocated(options.device_mib), options.device_mib * MIB)]
        for _ in range(options.contexts):
            check(driver.cuCtxCreate(None, 0, check(driver.cuDeviceGet(0))))
            self.device.append((_allocated(1), MIB))
        check(driver.cuCtxSetCurrent(self.primary))
        if options.pool_mib:
            self.device.append((_pooled(options.pool_mib), options.pool_mib * MIB))
        self.host = [_page_locked(options.allocated_mib), _registered(options.registered_mib)]
        check(driver.cuCtxSynchronize())

    def digest(self) -> str:
        state = hashlib.sha256()
        for address, size in self.device:
            state.update(download(address, min(size, 64 * MIB)))
        for memory in self.host:
            state.update(bytes(memory[::STRIDE]))
        return state.hexdigest()


def _page_locked(mib: int) -> memoryview:
    if not mib:
        return memoryview(b"")
    address = int(check(driver.cuMemHostAlloc(mib * MIB, PORTABLE | MAPPED)))
    return _touched(memoryview((ctypes.c_char * (mib * MIB)).from_address(address)).cast("B"))


def _registered(mib: int) -> memoryview:
    if not mib:
        return memoryview(b"")
    memory = _touched(memoryview(mmap.mmap(-1, mib * MIB)))
    check(driver.cuMemHostRegister(ctypes.addressof(ctypes.c_char.from_buffer(memory)), mib * MIB, PORTABLE))
    return memory


def _touched(memory: memoryview) -> memoryview:
    """Every page written, each otherwise than its neighbours."""
    for page in range(0, len(memory), STRIDE):
        memory[page] = page // STRIDE % 251
    return memory


if __name__ == "__main__":
    holder = Holder(arguments())
    serve(holder.digest)
