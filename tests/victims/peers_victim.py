"""Two devices in one process, each with memory that the other reads and writes: by peer access, and mapped by itself.

Every array is full of one number, which the host knows. A step adds to each from the device that does not own it, by a
kernel (or fills it, without --kernels), and copies across. With --interactive each line on standard input is answered:
`step N` works, `where` names the devices as the driver does, `peers` tries to enable peer access once more, anything
else reads everything back and says a digest.
"""

import argparse
import ctypes
import hashlib
import struct
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda.bindings import driver
from cuda_calls import check, download, primary_context
from dialogue import say

MIB = 1 << 20
WORDS = 1 << 64
PINNED = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
DEVICE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
READ_WRITE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


@dataclass
class Array:
    address: int
    words: int
    value: int

    def read(self) -> bytes:
        """Returns the array's bytes; ends the program if they are wrong."""
        found = download(self.address, self.words * 8)
        if found != struct.pack("<Q", self.value) * self.words:
            raise SystemExit(f"victim: an array of {self.words} words is not all {self.value:#x}")
        return found


class Side:
    """One of the two devices, with its arrays."""

    def __init__(self, ordinal: int, kernels: str | None) -> None:
        self.ordinal = ordinal
        self.context = primary_context(ordinal)
        self.stream = check(driver.cuStreamCreate(1))
        self.add = self._adder(kernels) if kernels else None
        self.arrays: list[Array] = []

    def _adder(self, kernels: str) -> Callable[[Array, int], None]:
        module = check(driver.cuModuleLoadData(Path(kernels).read_bytes()))
        function = check(driver.cuModuleGetFunction(module, b"add"))
        types = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)

        def add(array: Array, value: int) -> None:
            values = (array.address, array.words, value)
            check(driver.cuLaunchKernel(function, 64, 1, 1, 256, 1, 1, 0, self.stream, (values, types), 0))

        return add

    def enter(self) -> None:
        check(driver.cuCtxSetCurrent(self.context))

    def reach(self, other: "Side") -> int:
        """Returns the driver's answer to a request for peer access."""
        self.enter()
        return int(driver.cuCtxEnablePeerAccess(other.context, 0)[0])

    def allocate(self, size: int, value: int) -> None:
        self.enter()
        self._hold(int(check(driver.cuMemAlloc(size))), size, value)

    def map(self, size: int, value: int) -> None:
        """Physical memory of the program's own, which both devices may use."""
        self.enter()
        prop = driver.CUmemAllocationProp()
        prop.type, prop.location.type, prop.location.id = PINNED, DEVICE, self.ordinal
        address = int(check(driver.cuMemAddressReserve(size, 0, 0, 0)))
        check(driver.cuMemMap(address, size, 0, check(driver.cuMemCreate(size, prop, 0)), 0))
        check(driver.cuMemSetAccess(address, size, [_access(0), _access(1)], 2))
        self._hold(address, size, value)

    def _hold(self, address: int, size: int, value: int) -> None:
        self.arrays.append(Array(address, size // 8, 0))
        self.fill(self.arrays[-1], value)

    def fill(self, array: Array, half: int) -> None:
        self.enter()
        check(driver.cuMemsetD32Async(array.address, half, 2 * array.words, self.stream))
        array.value = half << 32 | half

    def change(self, array: Array, value: int) -> None:
        """Changes an array from this device, on whichever device it lies."""
        if self.add is None:
            self.fill(array, value)
            return
        self.enter()
        self.add(array, value)
        array.value = (array.value + value) % WORDS

    def take(self, mine: Array, theirs: Array) -> None:
        self.enter()
        size = min(mine.words, theirs.words) * 8
        check(driver.cuMemcpyDtoDAsync(mine.address, theirs.address, size, self.stream))
        mine.words, mine.value = size // 8, theirs.value

    def wait(self) -> None:
        self.enter()
        check(driver.cuStreamSynchronize(self.stream))

    def name(self) -> str:
        found = check(driver.cuDeviceGetUuid(check(driver.cuDeviceGet(self.ordinal))))
        return f"GPU-{uuid.UUID(bytes=bytes(found.bytes)[:16])}"


def _access(ordinal: int) -> Any:
    wanted = driver.CUmemAccessDesc()
    wanted.location.type, wanted.location.id, wanted.flags = DEVICE, ordinal, READ_WRITE
    return wanted


class Program:
    def __init__(self, size: int, kernels: str | None) -> None:
        self.sides = Side(0, kernels), Side(1, kernels)
        self.steps = 0
        near, far = self.sides
        assert near.reach(far) == far.reach(near) == 0, "these devices are no peers"
        for number, side in enumerate(self.sides):
            side.allocate(size, 11 + number)
            side.map(2 * size if side is near else size, 31 + number)  # which is which, the device's count tells
            side.allocate(4096, 51 + number)
            side.wait()

    def step(self) -> None:
        """Each changes what the other has; then one array goes across."""
        self.steps += 1
        near, far = self.sides if self.steps % 2 else self.sides[::-1]
        for index, (mine, theirs) in enumerate(zip(near.arrays, far.arrays, strict=True)):
            near.change(theirs, self.steps * 97 + index)
            near.wait()
            far.change(mine, self.steps * 89 + index)
            far.wait()
        near.take(near.arrays[0], far.arrays[1])
        near.wait()

    def digest(self) -> str:
        """Read by the device that owns it, and by the other one."""
        state = hashlib.sha256()
        for reader in self.sides:
            reader.enter()
            for array in (array for side in self.sides for array in side.arrays):
                state.update(array.read())
        return f"{self.steps} steps, digest {state.hexdigest()}"

    def answer(self, line: str) -> str:
        word, *numbers = line.split() or ["?"]
        if word == "step":
            for _ in range(int(numbers[0])):
                self.step()
            return "ok"
        if word == "where":
            return " ".join(side.name() for side in self.sides)
        if word == "peers":
            return " ".join(str(side.reach(other)) for side, other in zip(self.sides, self.sides[::-1], strict=True))
        return self.digest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=4, help="of each large array, a multiple of 2")
    parser.add_argument("--kernels", help="module with a kernel `add`; without it memsets take its place")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    parser.add_argument("--interactive", action="store_true")
    options = parser.parse_args()
    program = Program(options.mib * MIB, options.kernels)
    if options.interactive:
        say("ready")
        for line in sys.stdin:
            say(program.answer(line))
        return
    for _ in range(options.steps):
        program.step()
        time.sleep(options.pause)
    say(program.digest())


if __name__ == "__main__":
    main()
