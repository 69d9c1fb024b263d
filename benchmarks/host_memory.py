"""Ways to fill and pin the host memory of an arena: how many files, how many threads, in which order.

Each way makes the same bytes and lets go of them again. `wall_s` counts from the first file to the last pin; `fill_s`
and `pin_s` are sums over the threads, so that what waits for a lock is seen.

`again` fills the same bytes at once after they were free, and after they were free for PAUSE_SECONDS: a virtual machine
that reports free memory to its host loses it meanwhile, and each page then waits for the host once more.

`arenas`: as gcr does it, undisturbed and while another thread changes the address space every `disturbed_s` seconds.
"""

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from gcr.memory import hostmap
from gcr.memory.arena import Arena
from gcr.memory.memfiles import promised_memfd
from gcr_nvidia import devices
from gcr_nvidia.memory import CudaDevice

MIB, GIB = 1 << 20, 1 << 30
SIZE = 16 * GIB
PAUSE_SECONDS = 60.0
MADV_HUGEPAGE, MADV_POPULATE_READ, MADV_POPULATE_WRITE = 14, 22, 23
THP = Path("/sys/kernel/mm/transparent_hugepage")
Row = dict[str, Any]

_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@dataclass(frozen=True, slots=True)
class Way:
    """`mapped_first`: before any is filled. `apart`: all are filled before any is pinned; else file by file.

    pinners: threads that pin, where that is done apart; 0: as many as fill.
    """

    segment: int
    threads: int
    filling: Sequence[str] = ("fallocate",)
    mapped_first: bool = True
    apart: bool = False
    pinners: int = 0


WAYS = (
    Way(GIB, 8, mapped_first=False),
    Way(GIB, 16, apart=True, pinners=1),
    Way(GIB, 16, ("fallocate", "populate_read")),
    Way(512 * MIB, 16, ("fallocate", "populate_read")),
    Way(256 * MIB, 16, ("fallocate", "populate_read")),
    Way(256 * MIB, 8, ("fallocate", "populate_read")),
    Way(512 * MIB, 16, ("fallocate", "populate_read"), apart=True, pinners=1),
    Way(512 * MIB, 16, ("fallocate", "populate_read"), apart=True, pinners=4),
    Way(256 * MIB, 16, ("populate_write",)),
    Way(256 * MIB, 16, ("huge", "populate_write")),
)
ARENAS = ((GIB, 8, 0.0), (GIB, 16, 0.0), (GIB, 16, 0.1))  # segment, threads, seconds between disturbances or 0


@dataclass(slots=True)
class Clock:
    """Seconds of each kind of step, summed over threads."""

    spent: dict[str, float] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def timed(self, kind: str, step: Callable[[], object]) -> None:
        began = time.monotonic()
        step()
        with self.lock:
            self.spent[kind] = self.spent.get(kind, 0.0) + time.monotonic() - began


def measure(
    size: int = SIZE,
    ways: Sequence[Way] = WAYS,
    arenas: Sequence[tuple[int, int, float]] = ARENAS,
    pause_s: float = PAUSE_SECONDS,
) -> Iterator[Row]:
    """Yields the results so far after each way. `size`: bytes."""
    device = CudaDevice(devices.present()[0].uuid)
    known: Row = {"bytes": size, "machine": machine(), "again": {}, "ways": [], "arenas": []}
    for when, seconds in (("first", 0.0), ("at_once", 0.0), ("after_a_pause", pause_s)):
        time.sleep(seconds)
        known["again"][when] = filled(size)
        yield known
    with closing(device):
        for way in ways:
            known["ways"].append({**asdict(way), **tried(way, size, device)})
            yield known
        for segment, threads, disturbed_s in arenas:
            with disturbing(disturbed_s):
                row = by_arena(segment, threads, size, device)
            known["arenas"].append({"disturbed_s": disturbed_s, **row})
            yield known


def machine() -> Row:
    names = (THP / "shmem_enabled", THP / "enabled", Path("/proc/sys/vm/nr_hugepages"))
    meminfo = Path("/proc/meminfo").read_text().splitlines()
    available = next(line.split()[1] for line in meminfo if line.startswith("MemAvailable"))
    facts = {path.name: path.read_text().strip() if path.exists() else None for path in names}
    return {**facts, "available_kib": int(available), "cores": len(os.sched_getaffinity(0))}


def filled(size: int, threads: int = 16, segment: int = 256 * MIB) -> Row:
    """Fills files of `size` bytes in all side by side, and lets go of them."""
    fds = [promised_memfd(min(size, segment)) for _ in range(max(1, size // segment))]
    began = time.monotonic()
    try:
        _side_by_side(threads, lambda number: os.posix_fallocate(fds[number], 0, min(size, segment)), len(fds))
        wall = time.monotonic() - began
    finally:
        for fd in fds:
            os.close(fd)
    return {"wall_s": wall, "bytes_per_s": size / wall}


def tried(way: Way, size: int, device: CudaDevice) -> Row:
    try:
        return _tried(way, size, device)
    except OSError as refused:  # an old kernel knows no MADV_POPULATE_WRITE
        return {"refused": str(refused)}


def _tried(way: Way, size: int, device: CudaDevice) -> Row:
    clock, count = Clock(), size // way.segment
    base = hostmap.reserve(size)
    fds = [promised_memfd(way.segment) for _ in range(count)]
    places = [base + number * way.segment for number in range(count)]

    def map_one(number: int) -> None:
        hostmap.map_shared(places[number], way.segment, fds[number])

    def fill_one(number: int) -> None:
        if not way.mapped_first:
            clock.timed("map_s", lambda: map_one(number))
        clock.timed("fill_s", lambda: _fill(way.filling, fds[number], places[number], way.segment))

    def pin_one(number: int) -> None:
        device.enter()
        clock.timed("pin_s", lambda: device.pin(places[number], way.segment))

    def fill_and_pin(number: int) -> None:
        fill_one(number)
        pin_one(number)

    began = time.monotonic()
    marks: Row = {}
    try:
        if way.mapped_first:
            for number in range(count):
                map_one(number)
        if way.apart:
            _side_by_side(way.threads, fill_one, count)
            marks["filled_s"] = time.monotonic() - began
            _side_by_side(way.pinners or way.threads, pin_one, count)
        else:
            _side_by_side(way.threads, fill_and_pin, count)
        wall = time.monotonic() - began
        marks |= {"wall_s": wall, "bytes_per_s": size / wall, **clock.spent}
        began = time.monotonic()
        _side_by_side(way.threads, lambda number: _unpin(device, places[number]), count)
        marks["unpin_s"] = time.monotonic() - began
        return marks
    finally:
        for fd in fds:
            os.close(fd)
        hostmap.unreserve(base, size)


def _unpin(device: CudaDevice, address: int) -> None:
    device.enter()
    device.unpin(address)


def _side_by_side(threads: int, step: Callable[[int], None], count: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(step, range(count)))


def _fill(how: Sequence[str], fd: int, address: int, size: int) -> None:
    advice = {"huge": MADV_HUGEPAGE, "populate_read": MADV_POPULATE_READ, "populate_write": MADV_POPULATE_WRITE}
    for step in how:
        if step == "fallocate":
            os.posix_fallocate(fd, 0, size)
        elif _madvise(address, size, advice[step]) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{step}: {os.strerror(number)}")


@contextmanager
def disturbing(every_s: float) -> Iterator[None]:
    """Changes the address space every so often, as a thread that begins does; never for 0."""
    over = Event()

    def change() -> None:
        while not over.wait(every_s):
            mmap.mmap(-1, 8 * MIB).close()

    thread = Thread(target=change)
    if every_s:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if every_s:
            thread.join()


def by_arena(segment: int, threads: int, size: int, device: CudaDevice) -> Row:
    """As gcr does it."""
    clock = Clock()

    def pin(address: int, length: int) -> None:
        device.enter()
        clock.timed("pin_s", lambda: device.pin(address, length))

    def unpin(address: int) -> None:
        device.enter()
        device.unpin(address)

    arena = Arena(pin, unpin, segment_bytes=segment, limit_bytes=2 * size, threads=threads, hurry=threads)
    with closing(arena):
        began = time.monotonic()
        arena.take("benchmark", size)
        wall = time.monotonic() - began
    return {"segment": segment, "threads": threads, "wall_s": wall, "bytes_per_s": size / wall, **clock.spent}
