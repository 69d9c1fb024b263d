"""Images for tests: a store that is written to without a device."""

import mmap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from blake3 import blake3
from msgspec.structs import replace

from gcr.drain import HandleSpec
from gcr.hashing import HashKey
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.crypto.cipher import PLAIN
from gcr.image.crypto.ciphers import cipher_of
from gcr.image.files.manifest import Beside, Costs, Cut, ImagedProcess, Manifest, Source
from gcr.image.read.folder import bring_folder
from gcr.image.read.reader import ImageReader
from gcr.image.store.mark import MARK
from gcr.image.store.store import Store
from gcr.image.write.folder import add_folder
from gcr.image.write.publishing import Contents
from gcr.image.write.writer import ImageWriter
from gcr.memory.layout import SealedHandle, SealedSegment, SealedTable

KEY = bytes(range(32))
MANY = 3 * CHUNK_BYTES + 4096  # some chunks, and a part of one
CIPHERS = {"plain": PLAIN, "encrypted": cipher_of(KEY)}


def bytes_of(seed: int, size: int) -> bytes:
    """Returns noise, which takes a fifth of the time of randbytes."""
    return blake3(str(seed).encode()).digest(size)


# The top byte of a little-endian number: its exponent is that of 2**-6, or close to it, and its sign stays.
TOP = {"e": (2, 0x24, 0x83), "f": (4, 0x3C, 0x80), "d": (8, 0x3F, 0x80)}  # size, bits that are set, bits that stay


def weights(seed: int, count: int, format: str = "f") -> bytes:
    """Returns numbers as those of a model: all of about one magnitude."""
    size, exponent, kept = TOP[format]
    data = bytearray(bytes_of(seed, count * size))
    data[size - 1 :: size] = data[size - 1 :: size].translate(bytes(byte & kept | exponent for byte in range(256)))
    return bytes(data)


def mapped(data: bytes) -> memoryview:
    memory = mmap.mmap(-1, max(1, len(data)))
    memory[: len(data)] = data
    return memoryview(memory)[: len(data)]


def table(sizes: Sequence[int]) -> SealedTable:
    handles, at = [], 0
    for number, size in enumerate(sizes):
        handles.append(SealedHandle(HandleSpec(number + 1, size, 0, 0), "GPU-1", at))
        at += size
    return SealedTable("llm", 7, 8, 9, {0: "GPU-1"}, tuple(handles), (), (SealedSegment("GPU-1", at),))


def described(
    name: str, sizes: Sequence[int], job: str = "llm", created: float = 1.5, chunk_bytes: int = CHUNK_BYTES
) -> Callable[[Contents], Manifest]:
    return lambda contents: Manifest(
        name=name,
        cut=Cut.DEVICE,
        created=created,
        source=Source(job, "nvidia", True, {"gcr": "0"}, {"GPU-1": "none"}),
        processes=(ImagedProcess(table(sizes), 3, 4),),
        packs=tuple(contents.packs),
        beside=Beside(contents.chunks, contents.hashes),
        costs=Costs(
            bytes_total=contents.counts.total,
            bytes_zero=contents.counts.zero,
            bytes_written=contents.counts.written,
        ),
        chunk_bytes=chunk_bytes,
    )


def write(
    store: Store,
    name: str,
    allocations: Sequence[bytes],
    job: str = "llm",
    created: float = 1.5,
    key: HashKey | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    threads: int = 3,
) -> Manifest:
    with ImageWriter(store, name, threads=threads, key=key or HashKey.random(), chunk_bytes=chunk_bytes) as writer:
        writer.add((mapped(data), ()) for data in allocations)
        return writer.commit(described(name, [len(data) for data in allocations], job, created, chunk_bytes))


def folder_of(path: Path, files: Mapping[str, bytes]) -> Path:
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def imaged(
    store: Store,
    name: str,
    folder: Path,
    memory: Sequence[bytes] = (),
    sizes: Mapping[str, Sequence[int]] | None = None,
) -> Manifest:
    with ImageWriter(store, name, threads=3) as writer:
        writer.add((mapped(data), ()) for data in memory)
        files = add_folder(writer, folder, sizes or {}, {})
        plain = described(name, [len(data) for data in memory])
        return writer.commit(lambda found: replace(plain(found), cut=Cut.PROCESS, files=files))


def brought(store: Store, name: str, to: Path) -> dict[str, bytes]:
    to.mkdir()
    with ImageReader(store, name, threads=3) as reader:
        bring_folder(reader, to)
    return {each.name: each.read_bytes() for each in to.iterdir()}


def read(store: Store, name: str) -> list[bytes]:
    with ImageReader(store, name, threads=3) as reader:
        return contents(reader)


def contents(reader: ImageReader) -> list[bytes]:
    found = []
    table = reader.manifest.processes[0].table
    for handle in table.handles:
        target = bytearray(handle.spec.size)
        reader.read(table.pid, handle.device, handle.offset, memoryview(target))
        found.append(bytes(target))
    return found


def check(store: Store, name: str) -> None:
    with ImageReader(store, name, threads=1) as reader:
        for _ in reader.check():
            pass


def files(store: Store) -> list[str]:
    return sorted(
        str(p.relative_to(store.path)) for p in store.path.rglob("*") if p.is_file() and p.name not in ("lock", MARK)
    )


def flipped(path: Path, at: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def numbered(number: int) -> list[bytes]:
    """Returns the allocations of an image, some of which images of other numbers have, too."""
    return [bytes_of(number % 5, CHUNK_BYTES + 999), bytes_of(number, 70_000), bytes(5000)]
