"""Threads that allocate, free, copy and launch at random, each against a model it keeps on the host.

Every allocation is an array of equal 64-bit words; its thread knows which. With --steps the standard output is the same
for every run of the same seed; with --seconds (or until SIGUSR1) only `verified` is, and the counters prove that work
was in flight. With --vendor it runs on other devices than NVIDIA's; with --ordered it allocates and frees in stream
order, and streams come and go; --steps 7,9,8 is what each thread does. With --hold see dialogue.py.
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

from device import VENDORS, Device, open_device
from dialogue import held, note, over, say, serve

HALF = 1 << 32
WORDS = 1 << 64
SMALLEST, LARGEST = 256, 1 << 20
MOST_ALIVE = 24
CHECK_EVERY = 64
LOOK_SECONDS = 0.05


@dataclass
class Array:
    address: int
    words: int
    value: int  # what each word holds once the stream has come so far


class Plain:
    """A worker's memory, from the runtime's plain calls."""

    def __init__(self, worker: "Worker") -> None:
        self.worker, self.device = worker, worker.device

    def allocate(self, size: int) -> int:
        return self.device.allocate(size)

    def free(self, address: int) -> None:
        if self.worker.random.random() < 0.25:  # else the driver's own synchronisation is what makes it safe
            self.device.wait(self.worker.stream)
        self.device.free(address, self.worker.stream)


class Ordered(Plain):
    """Or in the order of its stream."""

    def allocate(self, size: int) -> int:
        if self.worker.random.random() < 0.1:
            self.worker.stream = self.device.successor(self.worker.stream)
        return self.device.allocate_ordered(size, self.worker.stream)

    def free(self, address: int) -> None:
        self.device.free_ordered(address, self.worker.stream)


class Worker:
    """One thread's stream, arrays and model. `launch(stream, address, words, addend)` adds to each by a kernel."""

    def __init__(
        self, number: int, seed: int, device: Device, launch: Callable[..., None] | None, memory: type[Plain] = Plain
    ) -> None:
        self.number, self.device, self.launch = number, device, launch
        self.random = random.Random(f"{seed}:{number}")
        self.arrays: list[Array] = []
        self.begun = self.finished = 0
        self.error = ""
        self.memory = memory(self)

    def enter(self) -> None:
        self.device.enter()
        self.stream = self.device.stream()

    def step(self) -> None:
        choices = [self.allocate] if len(self.arrays) < 2 else self.repertoire()
        self.random.choice(choices)()
        self.begun += 1
        if self.device.idle(self.stream):
            self.finished = self.begun
        if self.begun % CHECK_EVERY == 0:
            self.verify(self.random.choice(self.arrays))

    def repertoire(self) -> list[Callable[[], None]]:
        room = [self.allocate] if len(self.arrays) < MOST_ALIVE else []
        return [*room, self.free, self.copy, self.overwrite, self.add, self.add]

    def allocate(self) -> None:
        size = int(SMALLEST * (LARGEST / SMALLEST) ** self.random.random()) // 8 * 8
        self.arrays.append(Array(self.memory.allocate(size), size // 8, 0))
        self.fill(self.arrays[-1])

    def free(self) -> None:
        array = self.arrays.pop(self.random.randrange(len(self.arrays)))
        self.memory.free(array.address)

    def overwrite(self) -> None:
        self.fill(self.random.choice(self.arrays))

    def fill(self, array: Array) -> None:
        array.value = self.device.fill(array.address, array.words, self.random.randrange(HALF), self.stream)

    def copy(self) -> None:
        source, target = self.random.sample(self.arrays, 2)
        target.words = min(source.words, target.words)  # the rest is no longer looked at
        target.value = source.value
        self.device.copy(target.address, source.address, target.words * 8, self.stream)

    def add(self) -> None:
        array, addend = self.random.choice(self.arrays), self.random.randrange(WORDS)
        if self.launch is None:
            self.fill(array)
            return
        array.value = (array.value + addend) % WORDS
        self.launch(self.stream, array.address, array.words, addend)

    def verify(self, array: Array) -> bytes:
        self.device.wait(self.stream)
        self.finished = self.begun
        found = self.device.read(array.address, array.words * 8)
        if found != struct.pack("<Q", array.value) * array.words:
            self.error = (
                f"thread {self.number}: step {self.begun}: an array of {array.words} words is not all {array.value}"
            )
        return found

    def digest(self) -> bytes:
        """Returns a digest of the contents alone: addresses may differ."""
        state = hashlib.sha256()
        for array in self.arrays:
            state.update(self.verify(array))
        return state.digest()


def run(worker: Worker, go_on: Callable[[Worker], bool]) -> None:
    try:
        worker.enter()
        while go_on(worker) and not worker.error:
            worker.step()
        worker.device.wait(worker.stream)
        worker.finished = worker.begun
    except BaseException as error:  # a failed call exits, which ends no more than the thread
        worker.error = f"thread {worker.number}: step {worker.begun}: {error!r}"


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
            self._write()

    def _write(self) -> None:
        for worker in self._workers if self._map else []:
            struct.pack_into("<QQ", self._map, 16 * worker.number, worker.begun, worker.finished)

    def close(self) -> None:
        """The last numbers are there, too."""
        self._over.set()
        self._thread.join()
        self._write()


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=numbers, default=[500], help="of each thread; or one number for each")
    length.add_argument("--seconds", type=float)
    length.add_argument("--hold", action="store_true", help="do as a line on standard input says")
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vendor", choices=VENDORS, default="nvidia")
    parser.add_argument("--kernels", help="module with a kernel `add`; without it memsets take its place")
    parser.add_argument("--ordered", action="store_true", help="allocate and free in stream order")
    parser.add_argument("--progress", help="file for the counters")
    parser.add_argument("--interactive", action="store_true")
    return parser.parse_args()


def until(options: argparse.Namespace, much: str, enough: threading.Event) -> Callable[[Worker], bool]:
    if much == "on":
        return lambda worker: not enough.is_set()
    if options.seconds is None:
        steps = numbers(much) if much else options.steps
        return lambda worker: worker.begun < steps[worker.number % len(steps)]
    end = time.monotonic() + options.seconds
    signal.signal(signal.SIGUSR1, lambda _number, _frame: enough.set())
    return lambda worker: not enough.is_set() and time.monotonic() < end


def watch(workers: list[Worker], threads: list[threading.Thread]) -> None:
    """Shows that they go on."""
    while any(thread.is_alive() for thread in threads):
        note(f"step {sum(worker.begun for worker in workers)}")
        time.sleep(LOOK_SECONDS)


def end_with_input(enough: threading.Event) -> None:
    while not over():
        time.sleep(LOOK_SECONDS)
    enough.set()


def report(workers: list[Worker], with_digest: bool) -> str:
    digest = hashlib.sha256(b"".join(worker.digest() for worker in workers)).hexdigest()
    errors = [worker.error for worker in workers if worker.error]
    if errors:
        raise SystemExit("\n".join(errors))
    return f"verified digest {digest}" if with_digest else "verified"


def main() -> None:
    options = arguments()
    device = open_device(options.vendor)
    launch = device.adder(options.kernels) if options.kernels else None
    memory = Ordered if options.ordered else Plain
    workers = [Worker(number, options.seed, device, launch, memory) for number in range(options.threads)]
    progress = Progress(workers, options.progress)
    much, enough = held() if options.hold else "", threading.Event()
    go_on = until(options, much, enough)
    threads = [threading.Thread(target=run, args=(worker, go_on)) for worker in workers]
    for thread in threads:
        thread.start()
    if much == "on":
        threading.Thread(target=end_with_input, args=(enough,)).start()
    if much:
        watch(workers, threads)
    for thread in threads:
        while thread.is_alive():
            thread.join(0.1)  # a signal that another thread was given is handled when this one wakes up
    progress.close()
    (say if much else note)("steps " + ",".join(str(worker.begun) for worker in workers))
    if options.interactive:
        serve(lambda: report(workers, True))
    else:
        say(report(workers, options.seconds is None))


if __name__ == "__main__":
    main()
