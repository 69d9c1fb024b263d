"""What images were built by: ways to and from a disk, and sizes of chunks, measured side by side.

    python benchmarks/image_ways.py FOLDER [--gib 2] [--rounds 3] [--out FILE]

FOLDER is on the disk in question; what is written there is removed. The memory is a memfd, as an arena's is, and has
random bytes. The ways take turns, round after round; medians. A writer's time ends when its bytes are synced, a reader
begins with a cold page cache where it uses it at all. `io_uring` is measured where `liburing` can be imported and the
kernel allows it; else the row says why not.
"""

import argparse
import json
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from gcr.drain import HandleSpec
from gcr.image.chunks.chunk import NAME_BYTES
from gcr.image.disk.bounce import Bounce, move_each
from gcr.image.files.manifest import Beside, Costs, Cut, ImagedProcess, Manifest, Source
from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store
from gcr.image.write.publishing import Contents
from gcr.image.write.writer import ImageWriter
from gcr.memory.layout import SealedHandle, SealedSegment, SealedTable

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PIECE = 8 * MIB  # what is written or read at once
SIZES = (64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 4 * MIB)
COUNTS = (1, 2, 4, 8, 16)  # threads, or requests of one ring at a time
BOUNCED = (1, 4, 8)
FILL = 16 * MIB
REGION = 64 * KIB  # what a program changes at least at once, for `written_for_a_hundredth`

Move = Callable[[int, memoryview, int], None]  # descriptor, memory, offset in the file
Row = dict[str, Any]


def by_threads(count: int, move: Move) -> Callable[[int, memoryview], None]:
    def run(fd: int, memory: memoryview) -> None:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda at: move(fd, memory[at : at + PIECE], at), range(0, len(memory), PIECE)))

    return run


def write(fd: int, data: memoryview, at: int) -> None:
    if os.pwrite(fd, data, at) != len(data):
        raise OSError("a part of it was written")


def read(fd: int, data: memoryview, at: int) -> None:
    if os.preadv(fd, [data], at) != len(data):
        raise OSError("a part of it was read")


def bounced(move: Move) -> Move:
    """Through a buffer of huge pages that each thread uses again and again, as images are."""
    bounce, writing = Bounce(), move is write

    def through(fd: int, data: memoryview, at: int) -> None:
        buffer = bounce.buffer(len(data))
        if writing:
            move_each([buffer], [data])
        move(fd, buffer, at)
        if not writing:
            move_each([data], [buffer])

    return through


def by_ring(depth: int, writing: bool) -> Callable[[int, memoryview], None]:
    """Requests of one io_uring, `depth` at a time, from one thread."""
    import liburing

    prepare = liburing.io_uring_prep_writev if writing else liburing.io_uring_prep_readv

    def run(fd: int, memory: memoryview) -> None:
        ring, done, waits = liburing.Ring(), liburing.Cqe(), iter(range(0, len(memory), PIECE))
        liburing.io_uring_queue_init(depth, ring)
        held: dict[int, Any] = {}  # by the offset: the binding keeps nothing alive
        try:
            begun, left = 0, -(-len(memory) // PIECE)
            while left:
                for at in waits:
                    piece = memory[at : at + PIECE]
                    vector = liburing.Iovec([piece])
                    entry = liburing.io_uring_get_sqe(ring)
                    prepare(entry, fd, vector, at)
                    liburing.io_uring_sqe_set_data64(entry, at + 1)
                    held[at + 1], begun = (piece, vector), begun + 1
                    if begun == depth:
                        break
                liburing.io_uring_submit(ring)
                liburing.io_uring_wait_cqe(ring, done)
                piece, _ = held.pop(liburing.io_uring_cqe_get_data64(done[0]))
                if done[0].res != len(piece):
                    raise OSError(f"a request was answered {done[0].res}")
                liburing.io_uring_cq_advance(ring, 1)
                begun, left = begun - 1, left - 1
        finally:
            liburing.io_uring_queue_exit(ring)

    return run


def ways(folder: Path, memory: memoryview, rounds: int) -> Row:
    """Bytes a second by each way, medians; by the name of the way."""
    path, cached, direct = folder / "probe", 0, os.O_DIRECT
    plans: dict[str, tuple[int, Callable[[], Callable[[int, memoryview], None]]]] = {}
    for verb, move in (("write", write), ("read", read)):
        plans[f"{verb} page cache, 1 thread"] = cached, lambda move=move: by_threads(1, move)
        plans[f"{verb} page cache, 8 threads"] = cached, lambda move=move: by_threads(8, move)
        for count in COUNTS:
            plans[f"{verb} O_DIRECT, {count} threads"] = direct, lambda n=count, move=move: by_threads(n, move)
        for count in BOUNCED:
            made = partial(by_threads, count, bounced(move))
            plans[f"{verb} O_DIRECT, {count} threads, bounce buffers"] = direct, made
        for count in COUNTS[2:]:
            plans[f"{verb} O_DIRECT, io_uring, {count}"] = direct, lambda n=count, w=move is write: by_ring(n, w)
    rates: dict[str, list[float]] = {name: [] for name in plans}
    refused: dict[str, str] = {}
    for _ in range(rounds):
        for name, (flags, made) in plans.items():
            try:
                rates[name].append(len(memory) / _timed(path, flags, name.startswith("write"), made(), memory))
            except (ImportError, OSError) as error:
                refused[name] = str(error)
    path.unlink()
    return {name: refused.get(name) or statistics.median(found) for name, found in rates.items()}


def _timed(path: Path, flags: int, writing: bool, run: Callable[[int, memoryview], None], memory: memoryview) -> float:
    if writing:
        path.unlink(missing_ok=True)  # as a pack is: blocks are allocated as it grows
    else:
        cold(path)
    fd = os.open(path, flags | (os.O_RDWR | os.O_CREAT if writing else os.O_RDONLY), 0o600)
    try:
        began = time.monotonic()
        run(fd, memory)
        if writing:
            os.fsync(fd)
        return time.monotonic() - began
    finally:
        os.close(fd)


def cold(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def chunk_sizes(folder: Path, memory: memoryview, rounds: int) -> list[Row]:
    """An image of this memory by gcr's own writer and reader, for each size of its chunks."""
    rows = [{"chunk_bytes": size, "write": [], "again": [], "read": []} for size in SIZES]
    for _ in range(rounds):
        for row in rows:
            with tempfile.TemporaryDirectory(dir=folder) as where:
                _one(Store(Path(where) / "store"), memory, row)
    for row in rows:
        row.update({name: len(memory) / statistics.median(row[name]) for name in ("write", "again", "read")})
        row["beside_bytes_per_gib"] = row.pop("beside") * GIB // len(memory)
        row["written_for_a_hundredth"] = 1 - 0.99 ** max(1, row["chunk_bytes"] // REGION)
    return rows


def _one(store: Store, memory: memoryview, row: Row) -> None:
    for name, word in (("a", "write"), ("b", "again")):
        began = time.monotonic()
        with ImageWriter(store, name, chunk_bytes=row["chunk_bytes"]) as writer:
            writer.add([(memory, ())])
            writer.commit(lambda contents, name=name: described(name, contents, row["chunk_bytes"]))
        row[word].append(time.monotonic() - began)
    for pack in store.packs.folder.iterdir():
        cold(pack)
        row["beside"] = pack.stat().st_size - len(memory)
    for kind in ("chunks", "hashes"):
        row["beside"] += (store.path / "images" / f"a.{kind}").stat().st_size
    began = time.monotonic()
    with mmap.mmap(-1, len(memory)) as found, ImageReader(store, "a") as reader:
        whole = memoryview(found)
        reader.read(1, "none", 0, whole)
        row["read"].append(time.monotonic() - began)
        right = bytes(whole[:NAME_BYTES]) == bytes(memory[:NAME_BYTES])
        whole.release()
    if not right:
        raise SystemExit("what was read is not what was written")


def described(name: str, contents: Contents, chunk_bytes: int) -> Manifest:
    size = contents.counts.total
    handles, segments = (SealedHandle(HandleSpec(1, size, 0, 0), "none", 0),), (SealedSegment("none", size),)
    table = SealedTable("ways", 1, 1, 1, {0: "none"}, handles, (), segments)
    return Manifest(
        name=name,
        cut=Cut.DEVICE,
        created=time.time(),
        source=Source("ways", "nvidia", True, {}, {}),
        processes=(ImagedProcess(table, 0, 0),),
        packs=tuple(contents.packs),
        beside=Beside(contents.chunks, contents.hashes),
        costs=Costs(
            bytes_total=contents.counts.total,
            bytes_zero=contents.counts.zero,
            bytes_written=contents.counts.written,
        ),
        chunk_bytes=chunk_bytes,
    )


def random_memory(size: int) -> memoryview:
    fd = os.memfd_create("ways")
    os.ftruncate(fd, size)
    mapped = mmap.mmap(fd, size)
    os.close(fd)
    for at in range(0, size, FILL):
        mapped[at : at + FILL] = os.urandom(min(FILL, size - at))
    return memoryview(mapped)


def measure(folder: Path, size: int, rounds: int) -> Row:
    memory = random_memory(size)
    return {
        "bytes": size,
        "cpus": os.cpu_count(),
        "ways_bytes_per_s": ways(folder, memory, rounds),
        "chunk_sizes": chunk_sizes(folder, memory, rounds),
    }


def command(
    arguments: Sequence[str], gib: float, option: str, default: float, measure: Callable[[Path, int, float], Row]
) -> None:
    """`measure` on the disk of a folder, of so many bytes, with the value of `--option`; to a file, or printed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gib", type=float, default=gib)
    parser.add_argument(f"--{option}", type=type(default), default=default, dest="chosen")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=asked.folder, prefix=f"gcr-{option}-") as folder:
        found = json.dumps(measure(Path(folder), int(asked.gib * GIB), asked.chosen), indent=1)
    if asked.out:
        asked.out.write_text(found + "\n")
    else:
        print(found)


if __name__ == "__main__":
    command(sys.argv[1:], 2.0, "rounds", 3, lambda folder, size, rounds: measure(folder, size, int(rounds)))
