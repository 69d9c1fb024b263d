"""The program of the demonstration: an ordinary one, that knows nothing of gcr and is never imported by it.

python program.py work STEPS       computes in device memory; prints `step N` and at the end a digest of that memory
python program.py allocate BYTES   allocates so much device memory, prints whether it got it, and frees it
"""

import ctypes
import hashlib
import sys
import time
from typing import Any

from cuda.bindings import driver

BLOCK = 32 << 20
BLOCKS = 12
STRIDE = 4099  # bytes between the patches that a step writes
PAUSE_S = 0.05
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


def check(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise SystemExit(f"the driver returned {result[0]!r}")
    return result[1] if len(result) == 2 else result[1:]


def open_device() -> None:
    check(driver.cuInit(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))))


def work(steps: int) -> None:
    """Each step copies every block into the next, with a part of it overwritten; only the device holds the state."""
    blocks = [check(driver.cuMemAlloc(BLOCK)) for _ in range(BLOCKS)]
    for number, block in enumerate(blocks):
        check(driver.cuMemsetD32(block, number + 1, BLOCK // 4))
    for step in range(steps):
        _advance(blocks, step)
        print(f"step {step}", flush=True)
        time.sleep(PAUSE_S)
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(download(int(block)))
    print(f"digest {digest.hexdigest()}", flush=True)


def _advance(blocks: list[Any], step: int) -> None:
    for number, block in enumerate(blocks):
        following = blocks[(number + 1) % len(blocks)]
        check(driver.cuMemcpyDtoD(following, block, BLOCK // 2))
        check(driver.cuMemsetD8(int(block) + step * STRIDE, (step + number) % 256, STRIDE))


def download(address: int) -> bytes:
    host = bytearray(BLOCK)
    view = (ctypes.c_char * BLOCK).from_buffer(host)
    check(driver.cuMemcpyDtoH(ctypes.addressof(view), address, BLOCK))
    del view
    return bytes(host)


def allocate(size: int) -> None:
    error, address = driver.cuMemAlloc(size)
    if int(error) == _OUT_OF_MEMORY:
        print("no room", flush=True)
        return
    check((error, address))
    print(f"allocated {size}", flush=True)
    check(driver.cuMemFree(address))


if __name__ == "__main__":
    open_device()
    {"work": work, "allocate": allocate}[sys.argv[1]](int(sys.argv[2]))
