"""Lanes: threads of ranks that lend each other device memory, compute in it, and look at every word now and then.

Six programs of such lanes are in shapes_victim.py. The ranks are a crew (crew.py).
"""

import os
import time
from array import array
from collections.abc import Sequence
from ctypes import c_char, c_uint32, c_uint64
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from crew import PAGE, Page
from cuda_device import launch
from cuda_driver import DISABLE_TIMING, NON_BLOCKING, driver
from p2p_model import MASK
from sharing import Piece, Sharing

WORDS = 512
SIZE = 8 * WORDS
U32, U64 = c_uint32, c_uint64
HOST = 8 * PAGE  # bytes of all ranks' flags, a page for each, and behind them the names that are posted
ROOM = 16 << 20
SOON = 0.0002


def part(step: int, *which: int) -> int:
    """Returns what is added in a step."""
    return Random(f"{step} {which}").getrandbits(64)


def summed(step: int, ranks: Sequence[int], *which: int) -> int:
    return sum(part(step, rank, *which) for rank in ranks)


class Node:
    """What the lanes of a rank share: its context, its kernels, and what the ranks post for each other."""

    def __init__(self, page: Page, rank: int, ranks: int, kernels: str) -> None:
        self.page, self.rank, self.everyone = page, rank, range(ranks)
        driver.cuInit(0)
        device = driver.cuDeviceGet(rank)
        self.context = driver.cuDevicePrimaryCtxRetain(device)
        driver.cuCtxSetCurrent(self.context)
        self.module = driver.cuModuleLoadData(Path(kernels).read_bytes())
        self.kernels: dict[str, Any] = {}
        self.sharing = Sharing(device, self.context, f"group-{os.getppid()}", rank)
        self.posts = page.rest[HOST:].cast("Q")

    def launch(self, kernel: str, stream: Any, *values: Any) -> None:
        if kernel not in self.kernels:
            self.kernels[kernel] = driver.cuModuleGetFunction(self.module, kernel.encode())
        launch(self.kernels[kernel], 1, 1, stream, *values)

    def zeros(self, size: int = SIZE) -> int:
        address = int(driver.cuMemAlloc_v2(size))
        driver.cuMemcpyHtoD_v2(address, bytes(size), size)
        return address

    def lend(self, number: int) -> Piece:
        """Makes memory for the others to map, under a number that no other memory of this rank has."""
        piece, _ = self.sharing.lend("asked")
        self.posts[number * len(self.everyone) + self.rank] = piece.handle
        return piece

    def borrow(self, number: int, owner: int) -> Piece:
        """Waits until that rank has lent it."""
        while not (handle := self.posts[number * len(self.everyone) + owner]):
            time.sleep(SOON)
        return self.sharing.take("asked", f"{owner}:{handle}")


class Communicator:
    """Memory of each of its ranks, which all of them map."""

    def __init__(self, node: Node, number: int, ranks: Sequence[int]) -> None:
        self.node, self.ranks, self.epoch = node, ranks, 0
        own = node.lend(number)
        self.pieces = [own if rank == node.rank else node.borrow(number, rank) for rank in ranks]
        self.at = [piece.address for piece in self.pieces]
        self.places = node.zeros(8 * len(ranks))
        driver.cuMemcpyHtoD_v2(self.places, (U64 * len(ranks))(*self.at), 8 * len(ranks))
        self.place = U32(ranks.index(node.rank)), U32(len(ranks))

    def reduce(self, stream: Any, data: int) -> None:
        self.epoch += 1
        meeting = U64(self.places), *self.place, U32(self.epoch)
        self.node.launch("cross_device_reduce_peers", stream, *meeting, U64(data), U32(WORDS))

    def drop(self) -> None:
        """All its work is done."""
        for piece in self.pieces:
            piece.drop()
        driver.cuMemFree_v2(self.places)


class Lane:
    """A thread of a rank. `values`: that every word of its arrays must have."""

    RANKS: ClassVar[int]
    LANES: ClassVar[int] = 1
    ARRAYS: ClassVar[int] = 1

    def __init__(self, node: Node, number: int) -> None:
        self.node, self.number, self.rng = node, number, Random(f"{node.rank} {number}")
        self.streams: list[Any] = []
        self.stream = self.new_stream()
        self.arrays, self.values = [node.zeros() for _ in range(self.ARRAYS)], [0] * self.ARRAYS
        self.set_up()

    def set_up(self) -> None:
        raise NotImplementedError

    def step(self, step: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Its work is done."""

    def run(self) -> None:
        driver.cuCtxSetCurrent(self.node.context)
        interval, step = 3 + 2 * self.node.rank + self.number, 1
        while self.node.page.goes_on(self.node.rank, step):
            self.step(step)
            if step % interval == 0:
                self.look(step)
            if self.rng.random() < 0.4:
                time.sleep(self.rng.random() * 0.004)
            step += 1
        self.look(step - 1)
        self.close()

    def look(self, step: int) -> None:
        for stream in self.streams:
            driver.cuStreamSynchronize(stream)
        right = all(map(self.is_right, self.arrays, self.values))
        self.node.page.tell(self.node.rank * self.LANES + self.number, step, right)

    def is_right(self, address: int, value: int) -> bool:
        found = bytearray(SIZE)
        driver.cuMemcpyDtoH_v2((c_char * SIZE).from_buffer(found), address, SIZE)
        return array("Q", bytes(found)) == array("Q", [value]) * WORDS

    def new_stream(self) -> Any:
        self.streams.append(driver.cuStreamCreate(NON_BLOCKING))
        return self.streams[-1]

    def after(self, first: Any, then: Any) -> None:
        """The work that comes to `then` waits for that of `first`."""
        event = driver.cuEventCreate(DISABLE_TIMING)
        driver.cuEventRecord(event, first)
        driver.cuStreamWaitEvent(then, event, 0)
        driver.cuEventDestroy_v2(event)

    def add(self, index: int, value: int, stream: Any = None) -> None:
        self.node.launch("add", stream or self.stream, U64(self.arrays[index]), U64(WORDS), U64(value))

    def work(self, step: int) -> None:
        """Keeps the device busy for some milliseconds, in each rank another time."""
        self.node.launch("spin", self.stream, U32((3 * step + 2 * self.node.rank) % 4))

    def has_summed(self, index: int, added: int, ranks: int) -> None:
        self.values[index] = (ranks * self.values[index] + added) & MASK
