"""Ranks that compute together as NCCL's do without P2P: one process a device, data through host memory that they share.

Each rank maps the segment, a file `/dev/shm/nccl-…`, and registers it with the driver; then it is unlinked. A rank's
device memory is its own, exportable as NCCL's is. In a round a rank changes its data by a kernel, works for some
milliseconds, and adds the others' data to its own by a kernel that waits for them on the device. The parent uses no
device: it tells the ranks when to take a step, and says what they computed.
--kernels: the module · --ranks: how many · --collective: the kernel that waits, by its name · --heartbeat: seconds. A
rank has a watchdog then, a thread that asks for the end of its work; the rank ends itself when that is not answered.
"""

import argparse
import ctypes
import hashlib
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from cuda_device import launch
from cuda_driver import (
    DEVICE,
    DEVICE_MAPPED,
    NON_BLOCKING,
    PINNED,
    PORTABLE,
    POSIX,
    READ_WRITE,
    AccessDesc,
    AllocationProp,
    Location,
    driver,
)
from dialogue import note, parser, perform, say

WORDS = 1 << 15  # that the ranks add up
OWN_BYTES = 6 << 20
ROUNDS = 4  # in a step; the ranks run freely meanwhile
SHIFT = 1 << 21
FLAG_BYTES = 64
NOT_READY, RELAXED = 600, 2
BEATS = 400  # of a watchdog, each of which destroys an event
U32, U64 = ctypes.c_uint32, ctypes.c_uint64


class Rank:
    def __init__(self, rank: int, ranks: int, segment: str, kernels: str, collective: str) -> None:
        self.rank, self.ranks, self.collective, self.epoch = rank, ranks, collective, 0
        driver.cuInit(0)
        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(rank)))
        self.stream = driver.cuStreamCreate(NON_BLOCKING)
        module = driver.cuModuleLoadData(Path(kernels).read_bytes())
        self.kernels = {
            name: driver.cuModuleGetFunction(module, name.encode())
            for name in ("add", "fill", "spin", "digest", collective)
        }
        self.host = attached(segment)
        self.shared = int(driver.cuMemHostGetDevicePointer_v2(self.host, 0))
        self.data = self.mapped(WORDS * 8)
        self.own = int(driver.cuMemAlloc_v2(OWN_BYTES))
        self.result = int(driver.cuMemAlloc_v2(16))
        self.launch("fill", U64(self.data), U64(WORDS), U64(rank))
        self.launch("fill", U64(self.own), U64(OWN_BYTES // 8), U64(rank + 97))

    def mapped(self, size: int) -> int:
        """Memory as NCCL makes it: physical, exportable as a descriptor, mapped by the program itself."""
        here = Location(DEVICE, self.rank)
        prop = AllocationProp(PINNED, POSIX, here)
        granule = int(driver.cuMemGetAllocationGranularity(prop, 0))
        size = -(-size // granule) * granule
        address = int(driver.cuMemAddressReserve(size, 0, 0, 0))
        driver.cuMemMap(address, size, 0, driver.cuMemCreate(size, prop, 0), 0)
        driver.cuMemSetAccess(address, size, AccessDesc(here, READ_WRITE), 1)
        return address

    def watch(self, heartbeat: float) -> None:
        """Ends the process where the driver does not answer the watchdog in time, as communication libraries do."""
        event, self.beat = driver.cuEventCreate(0), time.monotonic()
        others = [driver.cuEventCreate(0) for _ in range(BEATS)]

        def ask() -> None:
            device = driver.cuDeviceGet(self.rank)
            context = driver.cuDevicePrimaryCtxRetain(device)
            driver.cuCtxSetCurrent(context)
            driver.cuEventRecord(event, self.stream)
            while True:
                mode = ctypes.c_int(RELAXED)
                driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
                code, _ = driver.attempt("cuEventQuery", event)
                assert code in (0, NOT_READY)
                assert driver.cuCtxGetDevice() == device
                driver.cuCtxSetCurrent(None)
                driver.cuCtxSetCurrent(context)
                if others:  # as PyTorch's watchdog does with those of collectives that are done
                    driver.cuEventDestroy_v2(others.pop())
                driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
                assert mode.value == RELAXED
                self.beat = time.monotonic()
                time.sleep(0.02)

        def monitor() -> None:
            while time.monotonic() - self.beat < heartbeat:
                time.sleep(0.02)
            note("the watchdog was not answered")
            os._exit(86)

        for each in (ask, monitor):
            threading.Thread(target=each, daemon=True).start()

    def launch(self, kernel: str, *values: Any) -> None:
        launch(self.kernels[kernel], 1, 1, self.stream, *values)

    def step(self) -> str:
        """Several rounds without a wait, then what came of them."""
        for _ in range(ROUNDS):
            self.epoch += 1
            self.launch("add", U64(self.data), U64(WORDS), U64(self.epoch * SHIFT + self.rank))
            self.launch("add", U64(self.own), U64(OWN_BYTES // 8), U64(self.epoch))
            self.launch("spin", U32(1 + (3 * self.epoch + 2 * self.rank) % 5))
            place = U32(self.rank), U32(self.ranks), U32(self.epoch)
            self.launch(self.collective, U64(self.shared), *place, U64(self.data), U32(WORDS))
        self.launch("digest", U64(self.data), U64(WORDS), U64(self.result))
        self.launch("digest", U64(self.own), U64(OWN_BYTES // 8), U64(self.result + 8))
        driver.cuStreamSynchronize(self.stream)
        return self.read(self.result, 16).hex()

    def digest(self) -> str:
        """Everything that it holds, and the driver's word that the segment is still registered."""
        driver.cuStreamSynchronize(self.stream)
        flags = int(driver.cuMemHostGetFlags(self.host))
        held = self.read(self.data, WORDS * 8) + self.read(self.own, OWN_BYTES)
        return f"{flags} {int(driver.cuMemHostGetDevicePointer_v2(self.host, 0)) == self.shared} {sha256(held)}"

    def read(self, address: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        driver.cuMemcpyDtoH_v2(data, address, size)
        return data.raw

    def close(self) -> None:
        driver.cuMemHostUnregister(self.host)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def attached(segment: str) -> int:
    """Maps the segment, for as long as the process lives, and registers it. Returns where it is."""
    with Path(segment).open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        memory = mmap.mmap(file.fileno(), size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    driver.cuMemHostRegister_v2(address, size, PORTABLE | DEVICE_MAPPED)
    KEPT.append(memory)
    return address


KEPT: list[mmap.mmap] = []


def serve(options: argparse.Namespace) -> None:
    program = Rank(options.rank, options.ranks, options.segment, options.kernels, options.collective)
    if options.heartbeat:
        program.watch(options.heartbeat)
    say("ready")
    for line in sys.stdin:
        say(program.step() if line == "step\n" else program.digest())
    program.close()


class Ranks:
    """The processes, as their parent sees them."""

    def __init__(self, options: argparse.Namespace) -> None:
        count = options.ranks
        file, segment = tempfile.mkstemp(prefix="nccl-", dir="/dev/shm")
        try:
            os.truncate(file, count * FLAG_BYTES + 2 * count * WORDS * 8)
            self.ranks = [self.begin(rank, segment, options) for rank in range(count)]
            for rank in self.ranks:
                assert self.hear(rank) == "ready"
        finally:
            os.close(file)
            Path(segment).unlink()

    @staticmethod
    def begin(rank: int, segment: str, options: argparse.Namespace) -> "subprocess.Popen[str]":
        words = [sys.executable, __file__, "--rank", str(rank), "--ranks", str(options.ranks), "--segment", segment]
        words += ["--kernels", options.kernels, "--collective", options.collective]
        words += ["--heartbeat", str(options.heartbeat)]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    @staticmethod
    def hear(rank: "subprocess.Popen[str]") -> str:
        assert rank.stdout
        line = rank.stdout.readline()
        if not line:
            raise SystemExit(f"victim: a rank ended with {rank.wait()}")
        return line.strip()

    def ask(self, word: str) -> str:
        for rank in self.ranks:
            assert rank.stdin
            rank.stdin.write(f"{word}\n")
        return " ".join(map(self.hear, self.ranks))

    def step(self) -> str:
        return self.ask("step")

    def digest(self) -> str:
        return self.ask("digest")

    def close(self) -> None:
        for rank in self.ranks:
            assert rank.stdin
            rank.stdin.close()
        codes = [rank.wait() for rank in self.ranks]
        note(f"ranks ended with {codes}")
        if any(codes):
            raise SystemExit(f"victim: the ranks ended with {codes}")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--kernels", required=True)
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--collective", default="all_reduce")
    arguments.add_argument("--heartbeat", type=float, default=0.0)
    arguments.add_argument("--rank", type=int)
    arguments.add_argument("--segment")
    options = arguments.parse_args()
    if options.rank is not None:
        serve(options)
        return
    ranks = Ranks(options)
    perform(options, ranks)
    ranks.close()


if __name__ == "__main__":
    main()
