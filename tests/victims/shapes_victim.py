"""Six shapes of program whose ranks wait for each other on their devices, and run freely: each at its own pace.

shapes_victim.py SHAPE KERNELS; crew.py says what its parent answers, and `SHAPES` below has the shapes. Each rank is a
process with a device of its own, and lends device memory to the others (sharing.py). It adds to its data, then kernels
make it the sum of all or carry it to another rank. What every word must be follows from the number of the step. A lane,
a thread of a rank, waits for its device and looks at all words now and then, each at another interval.
"""

import os
import sys
import threading
import time
from collections.abc import Sequence
from ctypes import addressof, c_char
from random import Random
from typing import Any

from crew import PAGE, Crew, Page
from cuda_driver import DEVICE_MAPPED, DISABLE_TIMING, PORTABLE, driver
from lanes import ROOM, SIZE, SOON, U32, U64, WORDS, Communicator, Lane, Node, part, summed
from p2p_model import MASK
from sharing import Piece, libc

FLAG = 16  # 32-bit words from one flag to the next: basic.c
THREAD_LOCAL, SET_NAME = 1, 15


class Buckets(Lane):
    """Data parallel: gradients are reduced bucket by bucket on a stream of their own, beside the work."""

    RANKS, ARRAYS = 4, 3

    def set_up(self) -> None:
        self.communicator, self.beside = Communicator(self.node, 0, self.node.everyone), self.new_stream()

    def step(self, step: int) -> None:
        ranks = self.node.everyone
        self.work(step)
        for index, data in enumerate(self.arrays):
            self.add(index, part(step, self.node.rank, index))
            self.after(self.stream, self.beside)
            self.communicator.reduce(self.beside, data)
            self.has_summed(index, summed(step, ranks, index), len(ranks))
        self.after(self.beside, self.stream)


class TwoThreads(Lane):
    """Two communicators, each used by a thread and a stream of its own."""

    RANKS, LANES = 3, 2

    def set_up(self) -> None:
        self.communicator = Communicator(self.node, self.number, self.node.everyone)
        self.communicator.reduce(self.stream, self.arrays[0])  # in this order on all ranks, as communicators begin
        driver.cuStreamSynchronize(self.stream)

    def step(self, step: int) -> None:
        ranks = self.node.everyone
        self.work(step + self.number)
        self.add(0, part(step, self.node.rank, self.number))
        self.communicator.reduce(self.stream, self.arrays[0])
        self.has_summed(0, summed(step, ranks, self.number), len(ranks))


class Pipeline(Lane):
    """Parts of a batch go from rank to rank and back, by sends and receives; each pair of ranks has its stream."""

    RANKS, ARRAYS = 4, 3

    def set_up(self) -> None:
        self.total, rank, last = [0] * self.ARRAYS, self.node.rank, self.RANKS - 1
        self.ends: dict[tuple[int, bool], tuple[Any, Piece]] = {}  # by the other rank, and whether it sends
        self.epochs = dict.fromkeys(((rank + by, sends) for by in (-1, 1) for sends in (False, True)), 0)
        there = [other for other in (rank - 1, rank + 1) if 0 <= other <= last]
        mine = {other: self.node.lend(other) for other in there}
        for other in there:
            stream = self.new_stream()
            self.ends[other, False] = stream, mine[other]
            self.ends[other, True] = stream, self.node.borrow(rank, other)

    def carry(self, other: int, sends: bool, index: int) -> None:
        if not 0 <= other < self.RANKS:
            return
        stream, piece = self.ends[other, sends]
        self.epochs[other, sends] += 1
        end = U64(piece.address), U32(sends), U32(self.epochs[other, sends])
        self.after(self.stream, stream)
        self.node.launch("ncclDevKernel_SendRecv", stream, *end, U64(self.arrays[index]), U32(WORDS))
        self.after(stream, self.stream)

    def step(self, step: int) -> None:
        rank, ranks = self.node.rank, self.node.everyone
        for back in (False, True):
            self.work(step + back)
            before, behind = (rank + 1, rank - 1) if back else (rank - 1, rank + 1)
            for index in range(self.ARRAYS):
                self.carry(before, False, index)
                self.add(index, part(step, rank, index, back))
                self.carry(behind, True, index)
        for index, total in enumerate(self.total):
            forth = total + summed(step, ranks, index, False)
            self.values[index] = (forth + summed(step, ranks[rank:], index, True)) & MASK
            self.total[index] = forth + summed(step, ranks, index, True)


class Graphs(Lane):
    """Two graphs that hold collectives are launched in turns, and captured anew now and then."""

    RANKS, ANEW = 3, 24

    def set_up(self) -> None:
        self.communicator, self.counter = Communicator(self.node, 0, self.node.everyone), self.node.zeros(4)
        self.graphs: list[Any] = []

    def step(self, step: int) -> None:
        ranks = self.node.everyone
        if step % self.ANEW == 1:
            self.capture_all()
        which = step % len(self.graphs)
        self.work(step)
        driver.cuGraphLaunch(self.graphs[which], self.stream)
        for kernel in range(2):
            self.has_summed(0, summed(which, ranks, kernel), len(ranks))

    def capture_all(self) -> None:
        driver.cuStreamSynchronize(self.stream)
        while self.graphs:
            driver.cuGraphExecDestroy(self.graphs.pop())
        self.graphs = [self.captured(which) for which in range(2)]

    def captured(self, which: int) -> Any:
        meeting = U64(self.communicator.places), *self.communicator.place, U64(self.counter)
        driver.cuStreamBeginCapture_v2(self.stream, THREAD_LOCAL)
        for kernel in range(2):
            self.add(0, part(which, self.node.rank, kernel))
            data = U64(self.arrays[0]), U32(WORDS)
            self.node.launch("cross_device_reduce_counted", self.stream, *meeting, *data)
        graph = driver.cuStreamEndCapture(self.stream)
        made = driver.cuGraphInstantiateWithFlags(graph, 0)
        driver.cuGraphDestroy(graph)
        return made

    def close(self) -> None:
        for graph in self.graphs:
            driver.cuGraphExecDestroy(graph)


class Copies(Lane):
    """A kernel waits for the words of the other ranks, which a thread of each copies while the kernels run."""

    RANKS, ARRAYS = 3, 1

    def set_up(self) -> None:
        rank = self.node.rank
        self.communicator, self.over, self.beside = (
            Communicator(self.node, 0, self.node.everyone),
            False,
            self.new_stream(),
        )
        start = addressof(c_char.from_buffer(self.node.page.rest)) + rank * PAGE
        driver.cuMemHostRegister_v2(start, PAGE, PORTABLE | DEVICE_MAPPED)
        self.flags = int(driver.cuMemHostGetDevicePointer_v2(start, 0))
        self.told = [self.node.page.rest[each * PAGE : (each + 1) * PAGE].cast("I") for each in self.node.everyone]
        self.thread = threading.Thread(target=self.copy)
        self.thread.start()

    def step(self, step: int) -> None:
        ranks = self.node.everyone
        self.work(step)
        self.add(0, part(step, self.node.rank))
        own = self.communicator.at[self.node.rank]
        meeting = U64(own), U64(self.flags), *self.communicator.place, U32(step)
        self.node.launch("cross_device_reduce_copied", self.stream, *meeting, U64(self.arrays[0]), U32(WORDS))
        self.has_summed(0, summed(step, ranks), len(ranks))

    def copy(self) -> None:
        """Polls, as libraries do."""
        libc.prctl(SET_NAME, b"NCCL Progress", 0, 0, 0)
        driver.cuCtxSetCurrent(self.node.context)
        done, mine, event = 0, self.told[self.node.rank], driver.cuEventCreate(DISABLE_TIMING)
        others = [rank for rank in self.node.everyone if rank != self.node.rank]
        while not self.over or mine[0] != done:
            if mine[0] == done:
                time.sleep(SOON)
                continue
            done += 1
            self.send(done, others, event)
            for other in others:
                self.told[other][FLAG * (1 + self.node.rank)] = done

    def send(self, epoch: int, others: Sequence[int], event: Any) -> None:
        ranks, at = len(self.node.everyone), self.communicator.at
        offset = ranks * FLAG * 4 + (epoch % 2 * ranks + self.node.rank) * SIZE
        for other in others:
            driver.cuMemcpyDtoDAsync_v2(at[other] + offset, at[self.node.rank] + offset, SIZE, self.beside)
        driver.cuEventRecord(event, self.beside)
        while driver.attempt("cuEventQuery", event)[0]:
            time.sleep(SOON)

    def close(self) -> None:
        self.over = True
        self.thread.join()


class Lazy(Lane):
    """Some ranks meet in a step, connected when they first do and anew later; the others are idle, or far behind."""

    RANKS = 4

    def set_up(self) -> None:
        self.of_all = [0] * self.RANKS  # the values of all ranks
        self.connected: dict[tuple[int, ...], tuple[Communicator, Any]] = {}
        self.latest = self.stream

    def step(self, step: int) -> None:
        chance = Random(step)
        some = tuple(sorted(chance.sample(self.node.everyone, chance.choice((2, 2, 3)))))
        anew = chance.random() < 0.15
        if self.rng.random() < 0.02:
            time.sleep(self.rng.random() * 0.1)
        if self.node.rank in some:
            self.meet(step, some, anew)
        total = sum(self.of_all[rank] + part(step, rank) for rank in some) & MASK
        for rank in some:
            self.of_all[rank] = total
        self.values[0] = self.of_all[self.node.rank]

    def meet(self, step: int, some: tuple[int, ...], anew: bool) -> None:
        if anew and some in self.connected:
            self.drop(some)
        if some not in self.connected:
            self.connected[some] = Communicator(self.node, step, some), self.new_stream()
        communicator, stream = self.connected[some]
        self.after(self.latest, stream)
        self.latest = stream
        self.add(0, part(step, self.node.rank), stream)
        communicator.reduce(stream, self.arrays[0])

    def drop(self, some: tuple[int, ...]) -> None:
        communicator, stream = self.connected.pop(some)
        driver.cuStreamSynchronize(stream)
        communicator.drop()
        if stream is self.latest:
            self.latest = self.stream
        self.streams.remove(stream)
        driver.cuStreamDestroy_v2(stream)


SHAPES: dict[str, type[Lane]] = {
    "buckets": Buckets,
    "threads": TwoThreads,
    "pipeline": Pipeline,
    "graphs": Graphs,
    "copies": Copies,
    "lazy": Lazy,
}


def serve(shape: type[Lane], kernels: str, file: int, rank: int) -> None:
    node = Node(Page(file, ROOM), rank, shape.RANKS, kernels)
    os.close(file)
    lanes = [shape(node, number) for number in range(shape.LANES)]
    others = [threading.Thread(target=lane.run) for lane in lanes[1:]]
    for thread in others:
        thread.start()
    lanes[0].run()
    for thread in others:
        thread.join()


def main() -> None:
    name, kernels, *rest = sys.argv[1:]
    if rest:
        serve(SHAPES[name], kernels, *map(int, rest))
        return
    Crew(__file__, [name, kernels], SHAPES[name].RANKS, ROOM, SHAPES[name].LANES).serve()


if __name__ == "__main__":
    main()
