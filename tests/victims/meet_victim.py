"""Ranks that meet in kernels, over host memory that all of them map: each a process at its own pace.

meet_victim.py RANKS KERNELS: `ready`; then for each line `EPOCH …`, how far each rank has looked at every word of its
data, or `wrong …`. `hold RANK`: that rank stays in its own code until `go`. All ranks add to their data, then a kernel
makes it the sum of all; what it must be follows from the epoch. A rank waits for its device now and then, every rank at
another interval.
"""

import mmap
import os
import subprocess
import sys
import time
from array import array
from ctypes import addressof, c_char, c_uint32, c_uint64
from pathlib import Path
from random import Random

from dialogue import note, say

WORDS = 512
WRONG = 1 << 63
MASK = (1 << 64) - 1
PORTABLE_MAPPED = 3
PAGE = 4096
HELD = PAGE // 8 - 1  # of the words that are told: 1 + the rank that is held


def room(ranks: int) -> int:
    """Returns the bytes that the ranks' kernels meet in; see cross_device_reduce."""
    return -(-(ranks * 64 + 2 * ranks * WORDS * 8) // PAGE) * PAGE


def parts(rank: int, epoch: int) -> list[int]:
    """Returns what a rank adds in an epoch, kernel by kernel."""
    rng = Random(rank * 1_000_003 + epoch)
    return [rng.getrandbits(64) for _ in range(rng.randrange(1, 5))]


class Rank:
    def __init__(self, number: int, ranks: int, shared: mmap.mmap, kernels: str) -> None:
        from cuda_device import CudaDevice
        from cuda_driver import driver

        self.number, self.ranks, self.shared = number, ranks, shared
        self.device = CudaDevice()
        start = addressof(c_char.from_buffer(shared))
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
        self.told()[self.number] = epoch if right else WRONG | epoch

    def told(self) -> memoryview:
        return memoryview(self.shared)[room(self.ranks) :].cast("Q")

    def run(self) -> None:
        rng, interval, epoch, told = Random(self.number), 3 + 4 * self.number, 0, self.told()
        while True:
            while told[HELD] == self.number + 1:
                time.sleep(0.001)
            epoch += 1
            self.step(epoch)
            if epoch % interval == 0:
                self.check(epoch)
            if rng.random() < 0.2:
                time.sleep(rng.random() * 0.004)


def main() -> None:
    ranks, kernels, *rest = sys.argv[1:]
    count = int(ranks)
    if rest:
        file, number = map(int, rest)
        shared = mmap.mmap(file, room(count) + PAGE)
        os.close(file)
        Rank(number, count, shared, kernels).run()
    file = os.memfd_create("meeting")
    os.ftruncate(file, room(count) + PAGE)
    told = memoryview(mmap.mmap(file, room(count) + PAGE))[room(count) :].cast("Q")
    started = [
        subprocess.Popen([sys.executable, __file__, ranks, kernels, str(file), str(number)], pass_fds=[file])
        for number in range(count)
    ]
    note(" ".join(str(each.pid) for each in started))
    while not all(told[:count]):
        assert all(each.poll() is None for each in started)
        time.sleep(0.01)
    say("ready")
    for line in sys.stdin:
        match line.split():
            case ["hold", rank]:
                told[HELD] = 1 + int(rank)
            case ["go"]:
                told[HELD] = 0
        say(answer(list(told[:count])))
    for each in started:
        each.kill()


def answer(told: list[int]) -> str:
    wrong = [f"rank {rank} in {epoch & ~WRONG}" for rank, epoch in enumerate(told) if epoch & WRONG]
    return f"wrong: {', '.join(wrong)}" if wrong else " ".join(map(str, told))


if __name__ == "__main__":
    main()
