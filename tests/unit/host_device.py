"""A device in host memory, copies of a process that holds it, and random acts of its program."""

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from hypothesis import strategies as st

from gcr.drain import DeviceMemory, DeviceRange, HandleSpec, Move, Span
from gcr.hashing import CHUNK_BYTES, ChunkHashes, HashKey, hash_bytes
from gcr.hashing.baseline import Baseline
from gcr.memory.arena import Arena
from gcr.memory.partial import PartialTable, Where
from gcr.protocol.operations.worker import ProcessFacts
from gcr.worker.holding import Holding
from gcr.worker.hostcopy import HostCopy
from gcr.worker.live import addresses
from gcr.worker.snapshot import SPARE_SHARE

KEY = HashKey(bytes(range(32)))
SIZES = (100, CHUNK_BYTES, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES + 4096)
LONG = 60.0
ABOUT = ProcessFacts("llm", 7, start_time=8, transaction=9, ordinals={0: "GPU-1"}, mappings=())

Found = TypeVar("Found")


def read(fd: int, how: Callable[[int], Found]) -> Found:
    try:
        return how(fd)
    finally:
        os.close(fd)


def raw(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


@dataclass
class Device:
    """Implements as much of gcr.drain.DataDrain as a copy needs. `blind`: allocations whose hash never changes.

    spare: what a snapshot can have · room: what it has · moves: copies within the device · moved: bytes to the host
    """

    memory_of: dict[int, Any] = field(default_factory=dict)
    spare: int = 0
    room: dict[int, Any] = field(default_factory=dict)
    moves: int = 0
    moved: int = 0
    slowly: float = 0.0
    blind: dict[int, bytes] = field(default_factory=dict)

    def put(self, id: int, data: bytes) -> None:
        self.memory_of[id] = ctypes.create_string_buffer(data, len(data))

    def holds(self, id: int) -> bytes:
        return bytes(self.memory_of[id].raw)

    def ranges(self) -> list[DeviceRange]:
        return [DeviceRange(ctypes.addressof(each), len(each), {id: 0}) for id, each in self.memory_of.items()]

    def memory(self) -> DeviceMemory:
        used = sum(map(len, self.room.values()))
        return DeviceMemory(used, (self.spare + SPARE_SHARE) * SPARE_SHARE // (SPARE_SHARE - 1), {})

    def create(self, handles: Sequence[HandleSpec]) -> DeviceRange:
        (one,) = handles
        made = ctypes.create_string_buffer(one.size)
        self.room[ctypes.addressof(made)] = made
        return DeviceRange(ctypes.addressof(made), one.size, {one.id: 0})

    def release(self, where: DeviceRange) -> None:
        self.room.pop(where.address, None)

    def move(self, moves: Sequence[Move]) -> Any:
        self.moves += 1
        for each in moves:
            ctypes.memmove(each.target, each.source, each.size)
        return SimpleNamespace(wait=lambda _timeout: 0.0, done=lambda: 0)

    def read(self, spans: Sequence[Span]) -> Any:
        time.sleep(self.slowly)
        for span in spans:
            ctypes.memmove(span.host, span.device, span.size)
            self.moved += span.size
        return SimpleNamespace(wait=lambda _timeout: 0.0, done=lambda: 0)

    def forget(self, where: DeviceRange, ids: Sequence[int]) -> None:
        """Freed by the program: its memory is gone already."""

    def hash(self, ranges: Sequence[DeviceRange], key: HashKey, chunk_bytes: int, timeout: float) -> ChunkHashes:
        ids = [id for where in ranges for id in where.offsets]
        found = {id: hash_bytes(self.blind.get(id, self.holds(id)), key, chunk_bytes) for id in ids}
        return ChunkHashes(chunk_bytes, found)


@contextmanager
def process(device: Device, *, leaves_copies: bool = False, arena_bytes: int = 1 << 30) -> Iterator[Holding]:
    arena = Arena(lambda _at, _n: None, lambda _at: None, segment_bytes=2 << 20, limit_bytes=arena_bytes, threads=2)
    attachment = cast(
        "Any", SimpleNamespace(drain=device, hashes_itself=lambda: True, hashed_beside=lambda _copy, _hash: None)
    )
    made = Holding(attachment, arena, "GPU-1", "llm/7", leaves_copies=leaves_copies)
    try:
        yield made
    finally:
        arena.close()


@contextmanager
def holding(device: Device) -> Iterator[HostCopy]:
    """Yields a copy of a process that holds the device's memory."""
    with process(device) as held:
        made = held.copy(9)
        look(made, device)
        yield made


def look(made: HostCopy, device: Device) -> None:
    """Takes in the allocations that the program has by now."""
    for id in [*made.memory.specs]:
        if id not in device.memory_of and made.live:
            made.live.forget(id)
    made.memory.ranges = device.ranges()
    made.memory.specs = {id: HandleSpec(id, len(each)) for id, each in device.memory_of.items()}


def sealed(made: HostCopy) -> PartialTable:
    return read(made.seal_for_image(ABOUT).to_memfd(), PartialTable.from_fd)


def image(made: HostCopy, parent: Mapping[int, bytes], found: PartialTable | None = None) -> dict[int, bytes]:
    """Returns the image's bytes as its writer puts them together from the sealed table."""
    found = found or sealed(made)
    assert made.segments
    out = {}
    for handle in found.table.handles:
        parts = addresses(handle.offset, handle.spec.size, made.segments.parts)
        data = bytearray(b"".join(ctypes.string_at(at, size) for at, size in parts))
        for number, where in enumerate(found.chunks[handle.spec.id]):
            if where == Where.PARENT:
                at = slice(number * CHUNK_BYTES, (number + 1) * CHUNK_BYTES)
                data[at] = parent[handle.spec.id][at]
        out[handle.spec.id] = bytes(data)
    return out


def baseline(memory: Mapping[int, bytes]) -> Baseline:
    known = {id: (len(data), hash_bytes(data, KEY, CHUNK_BYTES)) for id, data in memory.items()}
    return read(Baseline(KEY, known).to_memfd(), Baseline.from_fd)


def written(data: bytes, number: int, value: int) -> bytes:
    """Returns the data with one chunk filled with this value."""
    at = number * CHUNK_BYTES % max(1, len(data))
    at -= at % CHUNK_BYTES
    size = min(CHUNK_BYTES, len(data) - at)
    return data[:at] + bytes([value]) * size + data[at + size :]


@dataclass(frozen=True)
class Act:
    """One act on held memory: write a chunk, free, or allocate."""

    kind: int
    which: int
    number: int
    value: int


ACTS = st.lists(st.builds(Act, st.integers(0, 5), st.integers(0, 9), st.integers(0, 3), st.integers(0, 2)), max_size=8)


def act(device: Device, acts: Sequence[Act], ids: Iterator[int]) -> None:
    for each in acts:
        held = sorted(device.memory_of)
        if each.kind == 0 or not held:
            device.put(next(ids), bytes([each.value]) * SIZES[each.which % len(SIZES)])
        elif each.kind == 1:
            del device.memory_of[held[each.which % len(held)]]
        else:
            id = held[each.which % len(held)]
            device.put(id, written(device.holds(id), each.number, each.value))


def fails(error: Exception) -> Callable[..., Any]:
    def call(*_: object) -> None:
        raise error

    return call
