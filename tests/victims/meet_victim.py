"""Ranks that meet in kernels, over host memory that all of them map: each a process at its own pace.

meet_victim.py RANKS KERNELS [PATH FIRST HERE]; crew.py says what its parent answers. With a path HERE of the ranks are
started, from rank FIRST on, and the file there is the memory that all map: also those of other nodes, as the proxies of
a communication library fill it. All ranks add to their data, then a kernel makes it
the sum of all; what it must be follows from the epoch. A rank waits for its device now and then, every rank at another
interval.
"""

import os
import sys
import time
from array import array
from ctypes import addressof, c_char, c_uint32, c_uint64
from pathlib import Path
from random import Random

from crew import PAGE, Crew, Page

WORDS = 512
MASK = (1 << 64) - 1
PORTABLE_MAPPED = 3


def room(ranks: int) -> int:
    """Returns the bytes that the ranks' kernels meet in; see cross_device_reduce."""
    return -(-(ranks * 64 + 2 * ranks * WORDS * 8) // PAGE) * PAGE


def parts(rank: int, epoch: int) -> list[int]:
    """Returns what a rank adds in an epoch, kernel by kernel."""
    rng = Random(rank * 1_000_003 + epoch)
    return [rng.getrandbits(64) for _ in range(rng.randrange(1, 5))]


class Rank:
    def __init__(self, number: int, ranks: int, shared: Page, kernels: str) -> None:
        from cuda_device import CudaDevice
        from cuda_driver import driver

        self.number, self.ranks, self.shared = number, ranks, shared
        self.device = CudaDevice()
        start = addressof(c_char.from_buffer(shared.rest))
        driver.cuMemHostRegister_v2(start, room(ranks), PORTABLE_MAPPED)
        self.meeting = driver.cuMemHostGetDevicePointer_v2(start, 0)
        module = driver.cuModuleLoadData(Path(kernels).read_bytes())
        self.add = driver.cuModuleGetFunction(module, b"add")
        self.reduce = driver.cuModuleGetFunction(module, b"cross_device_reduce")
        self.stream = self.device.stream()
        self.data = self.device.allocate(8 * WORDS)
        self.device.write(self.data, bytes(8 * WORDS))
        self.value = 0

    def step(self, epoch: int) -> None:
        from cuda_device import launch

        for part in parts(self.number, epoch):
            launch(self.add, 1, 1, self.stream, c_uint64(self.data), c_uint64(WORDS), c_uint64(part))
        numbers = (c_uint32(each) for each in (self.number, self.ranks, epoch))
        launch(self.reduce, 1, 1, self.stream, c_uint64(self.meeting), *numbers, c_uint64(self.data), c_uint32(WORDS))
        added = sum(sum(parts(rank, epoch)) for rank in range(self.ranks))
        self.value = (self.ranks * self.value + added) & MASK

    def check(self, epoch: int) -> None:
        self.device.wait(self.stream)
        words = array("Q", bytes(self.device.read(self.data, 8 * WORDS)))
        right = words == array("Q", [self.value]) * WORDS
        self.shared.tell(self.number, epoch, right)

    def run(self) -> None:
        rng, interval, epoch = Random(self.number), 3 + 4 * self.number, 1
        while self.shared.goes_on(self.number, epoch):
            self.step(epoch)
            if epoch % interval == 0:
                self.check(epoch)
            if rng.random() < 0.2:
                time.sleep(rng.random() * 0.004)
            epoch += 1
        self.check(epoch - 1)


def main() -> None:
    ranks, kernels, *rest = sys.argv[1:]
    if len(rest) == 2:
        file, number = map(int, rest)
        shared = Page(file, room(int(ranks)))
        os.close(file)
        Rank(number, int(ranks), shared, kernels).run()
        return
    path, first, here = rest or ("", "0", ranks)
    Crew(__file__, [ranks, kernels], int(here), room(int(ranks)), first=int(first), path=path).serve()


if __name__ == "__main__":
    main()
