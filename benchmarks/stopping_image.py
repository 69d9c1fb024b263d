"""Measures the work of the last image of a migration, stage by stage, of a job of which little has changed.

    python benchmarks/stopping_image.py --chunks 131072 --runs 330 --rounds 3

Each round but the last one stands in the store with packs that have no bytes, only an end: nothing reads their chunks.
The last image is written for real, `runs` times 1 MiB, pulled by another store without TLS, and read there.
So 32 GiB need 1 GiB. No device takes part, and no process of gcr but the one that gives. Prints JSON: for each stage
seconds, and seconds of this process's cores.
"""

import argparse
import fcntl
import json
import os
import random
import shutil
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "tests" / "unit"))

from imaging import described, table  # noqa: E402

from gcr.engine.inflow import batches  # noqa: E402
from gcr.hashing import CHUNK_BYTES, HashKey  # noqa: E402
from gcr.image.chunks.chunk import name_of  # noqa: E402
from gcr.image.chunks.entry import BLOCK, PLACED, padded  # noqa: E402
from gcr.image.crypto.cipher import PLAIN  # noqa: E402
from gcr.image.exchange import server  # noqa: E402
from gcr.image.exchange.address import PeerAddress, Trust  # noqa: E402
from gcr.image.exchange.pulling import Peers, pull_from_peers  # noqa: E402
from gcr.image.files.manifest import Manifest  # noqa: E402
from gcr.image.pack.format import FACTS, FOOTER_MAGIC, HEADER, HEADER_MAGIC, Pack  # noqa: E402
from gcr.image.read.reader import ImageReader  # noqa: E402
from gcr.image.remote.transfer import Transfer  # noqa: E402
from gcr.image.store.store import Store  # noqa: E402
from gcr.image.write.parent import parent_of  # noqa: E402
from gcr.image.write.part import Part  # noqa: E402
from gcr.image.write.placing import Counts  # noqa: E402
from gcr.image.write.publishing import publish  # noqa: E402
from gcr.image.write.writer import ImageWriter  # noqa: E402
from gcr.image_helper import ondevice  # noqa: E402
from gcr.image_helper.lent import Lent  # noqa: E402
from gcr.memory.partial import PartialTable, Where  # noqa: E402

RUN = 4  # chunks that change together
LINE = (7, "GPU-1")  # as in tests/unit/imaging.py
WINDOW_BYTES = 64 << 20
TOKEN = "a token of this benchmark alone"

found: dict[str, dict[str, float]] = {}


@contextmanager
def stage(name: str) -> Iterator[None]:
    began, used = time.perf_counter(), time.process_time()
    yield
    found[name] = {"s": time.perf_counter() - began, "cores_s": time.process_time() - used}


class Job:
    """A job with `chunks` chunks in 64 allocations. Its changes are drawn, and the same in each run."""

    def __init__(self, chunks: int, runs: int) -> None:
        self.count, self._runs, self.rng = chunks, runs, random.Random(1)
        self.each = chunks // 64
        self.sizes = [self.each * CHUNK_BYTES] * 64

    def changed(self) -> Sequence[int]:
        begins = self.rng.sample(range(0, self.count - RUN, RUN + 1), self._runs)
        return sorted(begin + at for begin in begins for at in range(RUN))

    def pack(self, store: Store, names: Sequence[bytes]) -> Pack:
        """Makes a pack that has chunks of these names, and none of their bytes."""
        step = padded(CHUNK_BYTES) // BLOCK
        index = b"".join(PLACED.pack(name, 1 + at * step, CHUNK_BYTES) for at, name in enumerate(names))
        end, id = (1 + len(names) * step) * BLOCK, self.rng.randbytes(16).hex()
        footer = FACTS.pack(FOOTER_MAGIC, 1, len(names), end) + name_of(index)
        with (store.packs.folder / f"{id}.pack").open("wb") as file:
            file.write(HEADER.pack(HEADER_MAGIC, 1))
            file.seek(end)
            file.write(index.ljust(padded(len(index)), b"\0") + (footer + name_of(footer)).ljust(BLOCK, b"\0"))
            return Pack(id, name_of(footer), file.tell())

    def rounds(self, store: Store, count: int) -> None:
        """Publishes the images of the rounds."""
        key, references, digests = HashKey.random(), bytearray(40 * self.count), bytearray(16 * self.count)
        packs, changed, counts = list[Pack](), range(self.count), Counts(sum(self.sizes))
        for number in range(count):
            names = [self.rng.randbytes(32) for _ in changed]
            packs.append(self.pack(store, names))
            for at, (chunk, name) in enumerate(zip(changed, names, strict=True)):
                struct.pack_into("<32sII", references, chunk * 40, name, number, 1 + at * CHUNK_BYTES // BLOCK)
                digests[chunk * 16 : chunk * 16 + 16] = self.rng.randbytes(16)
            with store.claimed(f"r{number}") as claim:
                part = Part(packs, bytes(references), bytes(digests), counts)
                publish(store, claim, part, key, described(f"r{number}", self.sizes, created=number + 1.0))
            changed = self.changed()

    def lent(self) -> list[int]:
        """Returns descriptors of the copy at the cut: its table, and a segment that has what changed."""
        sealed = table(self.sizes)
        segment = os.memfd_create("segment", os.MFD_ALLOW_SEALING)
        os.ftruncate(segment, sum(self.sizes))
        where = {handle.spec.id: bytearray([Where.PARENT]) * self.each for handle in sealed.handles}
        for chunk in self.changed():
            where[chunk // self.each + 1][chunk % self.each] = Where.HERE
            os.pwrite(segment, self.rng.randbytes(64), chunk * CHUNK_BYTES)
        fcntl.fcntl(segment, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return [PartialTable(sealed, {id: bytes(each) for id, each in where.items()}).to_memfd(), segment]


def written(job: Job, store: Store) -> None:
    lent, fds = Lent(), job.lent()
    writer = ImageWriter(store, "last", threads=4)
    with stage("begin, while the job runs"):
        writer.__enter__()
    with stage("the parent, while the job runs"):
        parent, _ = parent_of(writer, {(7, 8, 3)})
        assert parent
        writer.key = parent.key
    with stage("the copy's tables"):
        lent.take(7, fds, True)
    with stage("the chunks"):
        writer.add(lent.additions(parent))
    with stage("what was written, and changed"):
        changed = parent.bytes_changed(lent.written(writer, parent))
    with stage("the commit"):
        writer.commit(lambda made: _child(described("last", job.sizes, created=99.0)(made), parent.name, changed))
    writer.__exit__()
    lent.close()


def _child(manifest: Manifest, parent: str, changed: int) -> Manifest:
    return replace(manifest, costs=replace(manifest.costs, parent=parent, bytes_changed=changed))


def pulled(source: Store, target: Store) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    peer = PeerAddress.parsed(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
    way = server.Listening(listening, None, TOKEN)
    giving = get_context("fork").Process(target=server.run, args=(source.path, way, lambda: None), daemon=True)
    giving.start()
    with ThreadPoolExecutor(1) as thread:  # as in a migration: the main thread does something else
        peers = Peers([peer], TOKEN, Trust())
        with stage("the pull"):
            thread.submit(pull_from_peers, target.path, "last", peers, None, Transfer("pull", 600), PLAIN).result()
    giving.terminate()
    giving.join()


def filled(job: Job, store: Store, before: str) -> None:
    device, ids = ondevice.OnDevice(), {*range(1, len(job.sizes) + 1)}
    with ImageReader(store, before) as reader:
        device.lacking(reader, LINE, (), WINDOW_BYTES)
    device.brought(*LINE)
    reader = ImageReader(store, "last", threads=4)
    with stage("the fill opens it"):
        reader.__enter__()
    with stage("the fill compares it"):
        windows = device.lacking(reader, LINE, ids, WINDOW_BYTES)
    memory = memoryview(bytearray(WINDOW_BYTES))
    with stage("the fill reads it"):
        for some in batches(windows, WINDOW_BYTES):
            reader.read_windows(*LINE, some, memory[: sum(size for _, size in some)])
    reader.__exit__()
    with stage("the processes' command opens it"), ImageReader(store, "last", threads=4):
        pass


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--chunks", type=int, default=1 << 17, help="of 256 KiB; a multiple of 64")
    options.add_argument("--runs", type=int, default=330, help="times 1 MiB that change from round to round")
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    job = Job(given.chunks, given.runs)
    ondevice.NEAR_BYTES = 0  # what lies between has no bytes here
    with TemporaryDirectory(dir="/dev/shm") as folder:
        source = Store(Path(folder) / "source")
        job.rounds(source, given.rounds)
        shutil.copytree(source.path, Path(folder) / "target", copy_function=sparse)
        target = Store(Path(folder) / "target")
        written(job, source)
        pulled(source, target)
        filled(job, target, f"r{given.rounds - 1}")
    print(json.dumps({"chunks": given.chunks, "runs": given.runs, "rounds": given.rounds, "stages": found}, indent=1))
    return 0


def sparse(one: str, other: str) -> None:
    """Copies a file, and leaves holes where it has some."""
    with Path(one).open("rb") as source, Path(other).open("wb") as target:
        at, end = 0, os.fstat(source.fileno()).st_size
        os.ftruncate(target.fileno(), end)
        while at < end:
            try:
                at = os.lseek(source.fileno(), at, os.SEEK_DATA)
            except OSError:  # nothing but a hole is left
                return
            hole = os.lseek(source.fileno(), at, os.SEEK_HOLE)
            os.pwrite(target.fileno(), os.pread(source.fileno(), hole - at, at), at)
            at = hole


if __name__ == "__main__":
    sys.exit(main())
