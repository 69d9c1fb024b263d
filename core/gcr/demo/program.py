"""The program of the demonstration: an ordinary one, that knows nothing of gcr and is never imported by it.

python program.py VENDOR work [STEPS]     computes in device memory; prints `step N` and at the end a digest of it.
                                          Without STEPS it ends after the step during which its stdin does
python program.py VENDOR allocate BYTES   allocates so much device memory, prints whether it got it, and frees it

Beside it devices/VENDOR.py uses the first device by the vendor's own means: open_device(), allocate(size) (an address,
or None without room), free(address), fill(address, byte, size), copy(to, source, size), download(address, size).
"""

import hashlib
import runpy
import select
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

BLOCK = 32 << 20
BLOCKS = 3  # few: each call to the device waits for another thread, long on a busy machine
STRIDE = 4099  # bytes between the patches that a step writes
PAUSE_S = 0.05


def device_of(vendor: str) -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("devices") / f"{vendor}.py")))


def until_told() -> Iterator[int]:
    step = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        yield step
        step += 1


def work(device: SimpleNamespace, steps: Iterable[int]) -> None:
    """Each step copies every block into the next, with a part of it overwritten; only the device holds the state."""
    blocks = [device.allocate(BLOCK) for _ in range(BLOCKS)]
    for number, block in enumerate(blocks):
        device.fill(block, number + 1, BLOCK)
    for step in steps:
        _advance(device, blocks, step)
        print(f"step {step}", flush=True)
        time.sleep(PAUSE_S)
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(device.download(block, BLOCK))
    print(f"digest {digest.hexdigest()}", flush=True)


def _advance(device: SimpleNamespace, blocks: list[int], step: int) -> None:
    for number, block in enumerate(blocks):
        following = blocks[(number + 1) % len(blocks)]
        device.copy(following, block, BLOCK // 2)
        device.fill(block + step * STRIDE % (BLOCK - STRIDE), (step + number) % 256, STRIDE)


def allocate(device: SimpleNamespace, size: int) -> None:
    address = device.allocate(size)
    if address is None:
        print("no room", flush=True)
        return
    print(f"allocated {size}", flush=True)
    device.free(address)


if __name__ == "__main__":
    used = device_of(sys.argv[1])
    used.open_device()
    if sys.argv[2] == "allocate":
        allocate(used, int(sys.argv[3]))
    else:
        work(used, range(int(sys.argv[3])) if sys.argv[3:] else until_told())
