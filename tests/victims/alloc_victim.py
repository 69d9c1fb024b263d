"""Threads that allocate, free, copy and launch at random, each against a model it keeps on the host.

Every allocation is an array of equal 64-bit words; its thread knows which. With --steps the standard output is the same
for every run of the same seed; with --seconds (or until SIGUSR1) only `verified` is, and the counters prove that work
was in flight.
--progress FILE holds, for each thread, two little-endian u64: steps begun and steps the device has finished.
"""

import argparse
import hashlib
import mmap
import random
import signal
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda.bindings import driver
from cuda_calls import check, download, primary_context
from dialogue import note, say, serve

HALF = 1 << 32
WORDS = 1 << 64
SMALLEST, LARGEST = 256, 1 << 20
MOST_ALIVE = 24
CHECK_EVERY = 64


@dataclass
class Array:
    address: int
    words: int
    value: int  # what each word holds once the stream has come so far


class Worker:
    """One thread's stream, arrays and model. `launch(stream, array, addend)` adds to each word by a kernel."""

    def __init__(self, number: int, seed: int, context: Any, launch: Callable[[Any, Array, int], None] | None) -> None:
        self.number, self.context, self.launch = number, context, launch
        self.random = random.Random(f"{seed}:{number}")
        self.arrays: list[Array] = []
        self.begun = self.finished = 0
        self.error = ""

    def enter(self) -> None:
        check(driver.cuCtxSetCurrent(self.context))
        self.stream = check(driver.cuStreamCreate(1))

    def step(self) -> None:
        choices = [self.allocate] if len(self.arrays) < 2 else self.repertoire()
        self.random.choice(choices)()
        self.begun += 1
        if int(driver.cuStreamQuery(self.stream)[0]) == 0:
            self.finished = self.begun
        if self.begun % CHECK_EVERY == 0:
            self.verify(self.random.choice(self.arrays))

    def repertoire(self) -> list[Callable[[], None]]:
        room = [self.allocate] if len(self.arrays) < MOST_ALIVE else []
        return [*room, self.free, self.copy, self.overwrite, self.add, self.add]

    def allocate(self) -> None:
        size = int(SMALLEST * (LARGEST / SMALLEST) ** self.random.random()) // 8 * 8
        self.arrays.append(Array(int(check(driver.cuMemAlloc(size))), size // 8, 0))
        self.fill(self.arrays[-1])

    def free(self) -> None:
        array = self.arrays.pop(self.random.randrange(len(self.arrays)))
        if self.random.random() < 0.25:  # else the driver's own synchronisation is what makes it safe
            check(driver.cuStreamSynchronize(self.stream))
        check(driver.cuMemFree(array.address))

    def overwrite(self) -> None:
        self.fill(self.random.choice(self.arrays))

    def fill(self, array: Array) -> None:
        half = self.random.randrange(HALF)
        array.value = half * HALF + half
        check(driver.cuMemsetD32Async(array.address, half, 2 * array.words, self.stream))

    def copy(self) -> None:
        source, target = self.random.sample(self.arrays, 2)
        target.words = min(source.words, target.words)  # the rest is no longer looked at
        target.value = source.value
        check(driver.cuMemcpyDtoDAsync(target.address, source.address, target.words * 8, self.stream))

    def add(self) -> None:
        array, addend = self.random.choice(self.arrays), self.random.randrange(WORDS)
        if self.launch is None:
            self.fill(array)
            return
        array.value = (array.value + addend) % WORDS
        self.launch(self.stream, array, addend)

    def verify(self, array: Array) -> bytes:
        check(driver.cuStreamSynchronize(self.stream))
        self.finished = self.begun
        found = download(array.address, array.words * 8)
        if found != struct.pack("<Q", array.value) * array.words:
            self.error = (
                f"thread {self.number}: step {self.begun}: an array of {array.words} words is not all {array.value}"
            )
        return found

    def digest(self) -> bytes:
        """Of contents alone: addresses may differ."""
        state = hashlib.sha256()
        for array in self.arrays:
            state.update(self.verify(array))
        return state.digest()


def run(worker: Worker, go_on: Callable[[Worker], bool]) -> None:
    worker.enter()
    while go_on(worker) and not worker.error:
        worker.step()
    check(driver.cuStreamSynchronize(worker.stream))
    worker.finished = worker.begun


class Progress:
    """Publishes every worker's counters, to a file when there is one, until closed."""

    def __init__(self, workers: list[Worker], path: str | None) -> None:
        self._workers, self._map = workers, None
        if path:
            Path(path).write_bytes(bytes(16 * len(workers)))
            with Path(path).open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        while not self._over.wait(0.002):
            for worker in self._workers if self._map else []:
                struct.pack_into("<QQ", self._map, 16 * worker.number, worker.begun, worker.finished)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def kernel_launcher(path: str | None) -> Callable[[Any, Array, int], None] | None:
    """`add(out, words, value)` of a module, all u64: the simulator's kernels.so, or add.ptx on a GPU."""
    if path is None:
        return None
    import ctypes

    module = check(driver.cuModuleLoadData(Path(path).read_bytes()))
    function = check(driver.cuModuleGetFunction(module, b"add"))
    types = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)

    def launch(stream: Any, array: Array, addend: int) -> None:
        values = (array.address, array.words, addend)
        check(driver.cuLaunchKernel(function, 64, 1, 1, 256, 1, 1, 0, stream, (values, types), 0))

    return launch


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, default=500, help="of each thread")
    length.add_argument("--seconds", type=float)
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernels", help="module with a kernel `add`; without it memsets take its place")
    parser.add_argument("--progress", help="file for the counters")
    parser.add_argument("--interactive", action="store_true")
    return parser.parse_args()


def until(options: argparse.Namespace) -> Callable[[Worker], bool]:
    if options.seconds is None:
        return lambda worker: worker.begun < options.steps
    end = time.monotonic() + options.seconds
    enough = threading.Event()
    signal.signal(signal.SIGUSR1, lambda _number, _frame: enough.set())
    return lambda worker: not enough.is_set() and time.monotonic() < end


def report(workers: list[Worker], with_digest: bool) -> str:
    digest = hashlib.sha256(b"".join(worker.digest() for worker in workers)).hexdigest()
    errors = [worker.error for worker in workers if worker.error]
    if errors:
        raise SystemExit("\n".join(errors))
    return f"verified digest {digest}" if with_digest else "verified"


def main() -> None:
    options = arguments()
    context = primary_context()
    launch = kernel_launcher(options.kernels)
    workers = [Worker(number, options.seed, context, launch) for number in range(options.threads)]
    progress = Progress(workers, options.progress)
    go_on = until(options)
    threads = [threading.Thread(target=run, args=(worker, go_on)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    progress.close()
    note("steps " + " ".join(str(worker.begun) for worker in workers))
    if options.interactive:
        serve(lambda: report(workers, True))
    else:
        say(report(workers, options.seconds is None))


if __name__ == "__main__":
    main()
