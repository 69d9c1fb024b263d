"""Measures how fast an image goes into a store in memory, and back, by the number of packs that are written at once.

    python benchmarks/packs_in_memory.py --gib 4 --rounds 2 > packs.json

The store is in /dev/shm; the image is of noise that lies in memory. It is written by the writer of every image, with
one pack and with 2, 4 and 8 side by side, but no more than there are cores, then read back into memory. Beside that:
the same bytes by bare writes of so many threads, each into a file of its own, which is what the kernel allows. Each
round has all ways in turn; medians. It needs no GPU, and three times the memory of the image. Prints JSON: seconds,
bytes a second, seconds of all cores; `packs` is how many the image had.
"""

import argparse
import gc
import json
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "tests" / "unit"))

from blake3 import blake3  # noqa: E402
from imaging import CIPHERS, described  # noqa: E402

from gcr import config  # noqa: E402
from gcr.image.read.reader import ImageReader  # noqa: E402
from gcr.image.store.store import Store  # noqa: E402
from gcr.image.write import newpacks  # noqa: E402
from gcr.image.write.writer import ImageWriter  # noqa: E402
from gcr.image_helper.__main__ import SWITCH_S  # noqa: E402

GIB = 1 << 30
PIECE = 4 << 20  # bytes of a bare write, as of a group of chunks
WINDOW = 64 << 20  # bytes that are read together
Row = dict[str, float]


def noise(size: int) -> int:
    """Returns a memfd that holds noise."""
    fd = os.memfd_create("noise")
    os.ftruncate(fd, size)
    memory = mapped(fd)
    for at in range(0, size, GIB):
        part = memory[at : at + GIB]
        part[:] = blake3(str(at).encode()).digest(len(part))
    return fd


def mapped(fd: int) -> memoryview:
    """Returns the memory mapped anew, as a worker lends it: each page is met for the first time."""
    return memoryview(mmap.mmap(fd, os.fstat(fd).st_size))


@contextmanager
def timed(row: Row, name: str) -> Iterator[None]:
    gc.collect()
    began, cpu = time.monotonic(), time.process_time()
    yield
    row[f"{name}_s"], row[f"{name}_core_s"] = time.monotonic() - began, time.process_time() - cpu


def through_an_image(folder: Path, fd: int, target: memoryview, packs: int, cipher: str) -> Row:
    """Writes an image into a fresh store, and reads it back."""
    memory = mapped(fd)
    newpacks.MOST, row = packs, Row()
    store = Store(folder / "store", CIPHERS[cipher])
    with timed(row, "write"), ImageWriter(store, "warm", config.load().threads) as writer:
        writer.add([(memory, ())])
        row["packs"] = len(writer.commit(described("warm", [len(memory)])).packs)
    with timed(row, "read"), ImageReader(store, "warm", config.load().threads) as reader:
        for at in range(0, len(memory), WINDOW):
            reader.read(7, "GPU-1", at, target[at : at + WINDOW])
    return row


def bare(folder: Path, fd: int, files: int) -> Row:
    """Writes the memory into files, one thread each."""
    memory = mapped(fd)
    row, part = Row(), len(memory) // files

    def write(number: int) -> None:
        file = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT, 0o600)
        for at in range(0, part, PIECE):
            os.pwritev(file, [memory[number * part + at : number * part + min(part, at + PIECE)]], at)
        os.close(file)

    with timed(row, "write"), ThreadPoolExecutor(files) as pool:
        [*pool.map(write, range(files))]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--packs", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--ciphers", nargs="+", default=[*CIPHERS], choices=[*CIPHERS])
    parser.add_argument("--folder", default="/dev/shm")
    asked = parser.parse_args()
    sys.setswitchinterval(SWITCH_S)  # as an image helper's
    memory = noise(int(asked.gib * GIB))
    target = memoryview(bytearray(os.fstat(memory).st_size))
    ways: dict[str, Callable[[Path], Row]] = {}
    for count in asked.packs:
        ways[f"bare, {count} files"] = lambda folder, n=count: bare(folder, memory, n)
        for cipher in asked.ciphers:
            way = f"{cipher}, {count} packs"
            ways[way] = lambda folder, n=count, c=cipher: through_an_image(folder, memory, target, n, c)
    rows: dict[str, list[Row]] = {way: [] for way in ways}
    for _ in range(asked.rounds):
        for way, run in ways.items():
            with TemporaryDirectory(dir=asked.folder) as folder:
                rows[way].append(run(Path(folder)))
    assert mapped(memory) == target, "what was read is not what was written"
    found = {way: median(some, len(target)) for way, some in rows.items()}
    print(json.dumps({"cores": len(os.sched_getaffinity(0)), "bytes": len(target), "ways": found}, indent=1))


def median(rows: list[Row], size: int) -> Row:
    """Returns the medians, with rates."""
    found = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    rates = {f"{name[:-2]}_bytes_per_s": size / found[name] for name in ("write_s", "read_s") if name in found}
    return {name: round(value, 3) for name, value in (found | rates).items()}


if __name__ == "__main__":
    main()
