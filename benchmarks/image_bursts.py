"""How many ask a disk at once, and for how much, by short bursts of gcr's own writer and reader of images.

    python benchmarks/image_bursts.py FOLDER [--gib 1.5] [--seconds 120] [--out FILE]

FOLDER is on the disk in question; what is written there is removed. A disk that others use has another rate half a
minute later, so the ways take turns, in an order of chance, and each is compared with a plain writer (or reader) that
runs just before and just after: one thread, one buffer of 16 MiB in huge pages. Half of the seconds are for writing.
A way's constants are those of gcr.image.pack.writer and gcr.image.read.fetching; what gcr has is called `gcr`.
"""

import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from unittest.mock import patch

from image_ways import MIB, command, described, random_memory
from images import Row, read_plainly, write_plainly

from gcr.image.pack import writer as packing
from gcr.image.pack.format import GROUP_BYTES
from gcr.image.read import fetching, reader
from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store
from gcr.image.write import part
from gcr.image.write.writer import ImageWriter

SLOTS, SLOT_BYTES = 4, 64 * MIB  # that a restore reads into, again and again
WARM_BYTES = 256 * MIB  # before the clock: as many buffers are waiting for the disk when it begins as when it ends


@dataclass(frozen=True, slots=True)
class Way:
    """`asking`: threads that ask the disk at once. `waiting`: buffers besides theirs. `threads`: that compute."""

    asking: int
    waiting: int
    group_bytes: int = GROUP_BYTES
    threads: int = 8


WRITING = {
    "gcr": Way(packing.WRITERS, packing.WAITING),
    "2 ask": Way(2, packing.WAITING),
    "3 ask": Way(3, packing.WAITING),
    "8 ask": Way(8, packing.WAITING),
    "8 ask, 8 MiB": Way(8, 8, 8 * MIB),
    "4 ask, 8 MiB": Way(4, 4, 8 * MIB),
    "4 ask, 2 MiB": Way(4, 4, 2 * MIB),
    "4 threads": Way(packing.WRITERS, packing.WAITING, threads=4),
}
READING = {
    "gcr": Way(fetching.READERS, fetching.WAITING, threads=fetching.COMPARERS),
    "8 compare": Way(fetching.READERS, fetching.WAITING),
    "2 ask": Way(2, fetching.WAITING, threads=fetching.COMPARERS),
    "4 ask, 4 more": Way(4, 4, threads=fetching.COMPARERS),
    "8 ask": Way(8, fetching.WAITING, threads=fetching.COMPARERS),
    "3 ask, 8 MiB": Way(3, 3, 8 * MIB, fetching.COMPARERS),
    "3 ask, 2 MiB": Way(3, 3, 2 * MIB, fetching.COMPARERS),
}


@contextmanager
def as_in(way: Way) -> Iterator[None]:
    """Whatever writes or reads an image within does it in this way."""
    with (
        patch.multiple(packing, WRITERS=way.asking, WAITING=way.waiting),
        patch.multiple(fetching, READERS=way.asking, WAITING=way.waiting, COMPARERS=way.threads),
        patch.object(part, "GROUP_BYTES", way.group_bytes),
        patch.object(reader, "GROUP_BYTES", way.group_bytes),
    ):
        yield


def writes(folder: Path, memory: memoryview, way: Way) -> float:
    """Bytes a second of memory that its store does not have; then it is gone from there."""
    with (
        as_in(way),
        tempfile.TemporaryDirectory(dir=folder) as where,
        ImageWriter(Store(Path(where) / "store"), "burst", threads=way.threads) as image,
    ):
        image.add([(memory[:WARM_BYTES], {})])
        began = time.monotonic()
        image.add([(memory[WARM_BYTES:], {})])
        return (len(memory) - WARM_BYTES) / (time.monotonic() - began)


def reads(store: Store, size: int, slots: Sequence[memoryview], way: Way) -> float:
    """Bytes a second into slots, each with the next window as soon as it is full, as a restore does."""
    with as_in(way), ImageReader(store, "burst", threads=way.threads) as image, ThreadPoolExecutor(len(slots)) as pool:
        windows = iter(range(0, size - SLOT_BYTES + 1, SLOT_BYTES))
        image.read(1, "none", next(windows), slots[0])

        def fill(slot: memoryview) -> int:
            read = 0
            for at in windows:  # which the interpreter's lock keeps whole
                image.read(1, "none", at, slot)
                read += len(slot)
            return read

        began = time.monotonic()
        return sum(pool.map(fill, slots)) / (time.monotonic() - began)


def bursts(ways: dict[str, Way], rate: Callable[[Way], float], plain: Callable[[], float], seconds: float) -> Row:
    """Of each way: shares of the plain rate, and bytes a second, burst by burst. One round at least."""
    shares, rates, plains = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list), [plain()]
    end = time.monotonic() + seconds
    while not shares or time.monotonic() < end:
        for name in random.sample([*ways], len(ways)):
            rates[name].append(rate(ways[name]))
            plains.append(plain())
            shares[name].append(2 * rates[name][-1] / (plains[-2] + plains[-1]))
    rows = {
        name: {**asdict(way), "share": statistics.median(shares[name]), "shares": shares[name], "rates": rates[name]}
        for name, way in ways.items()
    }
    return {"plain_bytes_per_s": plains, "ways": rows}


def measure(folder: Path, size: int, seconds: float) -> Row:
    memory, store = random_memory(WARM_BYTES + size), Store(folder / "store")
    written = bursts(
        WRITING,
        lambda way: writes(folder, memory, way),
        lambda: _rate(write_plainly(folder, size // 2, 0)),
        seconds / 2,
    )
    with ImageWriter(store, "burst") as image:
        image.add([(memory, {})])
        image.commit(lambda contents: described("burst", contents, image.chunk_bytes))
    path = max(store.packs.folder.iterdir(), key=lambda pack: pack.stat().st_size)  # in memory there are several
    slots, half = [random_memory(SLOT_BYTES) for _ in range(SLOTS)], cycle((0, 1))
    read = bursts(
        READING,
        lambda way: reads(store, len(memory), slots, way),
        lambda: _rate(read_plainly(path, next(half))),
        seconds / 2,
    )
    return {"bytes": size, "write": written, "read": read}


def _rate(found: tuple[int, float]) -> float:
    return found[0] / found[1]


if __name__ == "__main__":
    command(sys.argv[1:], 1.5, "seconds", 120.0, measure)
