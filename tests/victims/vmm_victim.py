"""A program with VMM allocations of its own: reserves, creates, maps, and mixes their bytes with memset and copies."""

import hashlib
from typing import Any

from cuda.bindings import driver
from cuda_calls import check, download, primary_context
from dialogue import parser, perform

MIB = 1 << 20


class Buffers:
    """`count` handles of `size` bytes, mapped one after another in one reserved range."""

    def __init__(self, count: int, size: int, seed: int, exportable: bool) -> None:
        self.count, self.size, self.seed, self.steps = count, size, seed, 0
        self.stream = check(driver.cuStreamCreate(1))
        self.base = int(check(driver.cuMemAddressReserve(count * size, 0, 0, 0)))
        prop = self._prop(exportable)
        self.handles = [check(driver.cuMemCreate(size, prop, 0)) for _ in range(count)]
        for index, handle in enumerate(self.handles):
            check(driver.cuMemMap(self.at(index), size, 0, handle, 0))
        access = driver.CUmemAccessDesc()
        access.location = prop.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        check(driver.cuMemSetAccess(self.base, count * size, [access], 1))
        for index in range(count):
            check(driver.cuMemsetD32Async(self.at(index), word(seed, index), size // 4, self.stream))

    @staticmethod
    def _prop(exportable: bool) -> Any:
        prop = driver.CUmemAllocationProp()
        prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        prop.location.id = 0
        if exportable:
            posix = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
            prop.requestedHandleTypes = posix
        return prop

    def at(self, index: int) -> int:
        return self.base + index % self.count * self.size

    def step(self) -> str:
        """Part of one buffer is overwritten, then half of it copied over its neighbour."""
        index, half, value = self.steps % self.count, self.size // 2, word(self.steps, self.seed)
        start = word(self.seed, self.steps) % (half // 4) * 4
        check(driver.cuMemsetD32Async(self.at(index) + start, value, (half - start) // 4, self.stream))
        check(driver.cuMemcpyDtoDAsync(self.at(index + 1) + half, self.at(index), half, self.stream))
        self.steps += 1
        return f"{value:08x}"

    def digest(self) -> str:
        check(driver.cuStreamSynchronize(self.stream))
        return hashlib.sha256(download(self.base, self.count * self.size)).hexdigest()


def word(*parts: int) -> int:
    """32 bits that depend on all parts."""
    return int.from_bytes(hashlib.blake2s(repr(parts).encode(), digest_size=4).digest(), "little")


def main() -> None:
    arguments = parser(__doc__, steps=200)
    arguments.add_argument("--handles", type=int, default=6)
    arguments.add_argument("--mib", type=int, default=2, help="of each handle")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--exportable", action="store_true", help="ask for file descriptors, as the program itself")
    options = arguments.parse_args()
    primary_context()
    perform(options, Buffers(options.handles, options.mib * MIB, options.seed, options.exportable))


if __name__ == "__main__":
    main()
