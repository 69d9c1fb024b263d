"""Copies for images, against a device whose memory is the host's: what arena and parent have together is what it held.

Whatever was written, freed and allocated between the parent, the live copy and the cut.
"""

import ctypes
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr.arena import Arena
from gcr.baseline import Baseline
from gcr.drain import DeviceRange, HandleSpec, Span
from gcr.errors import HashMissed, UsageError, WrongState
from gcr.hashing import CHUNK_BYTES, ChunkHashes, HashKey, hash_bytes
from gcr.jsonbody import sealed_memfd
from gcr.layout import DamagedTable, SealedTable
from gcr.partial import PartialTable, Where
from gcr.worker.holding import Holding
from gcr.worker.live import addresses
from gcr.worker.taking import copy_live, copy_out

KEY = HashKey(bytes(range(32)))
SIZES = (100, CHUNK_BYTES, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES + 4096)
LONG = 60.0
ABOUT = {"job": "llm", "pid": 7, "start_time": 8, "transaction": 9, "ordinals": {"0": "GPU-1"}, "mappings": []}


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
    """Implements as much of gcr.drain.DataDrain as a copy needs. `blind`: allocations whose hash never changes."""

    memory: dict[int, Any] = field(default_factory=dict)
    moved: int = 0
    blind: dict[int, bytes] = field(default_factory=dict)

    def put(self, id: int, data: bytes) -> None:
        self.memory[id] = ctypes.create_string_buffer(data, len(data))

    def holds(self, id: int) -> bytes:
        return bytes(self.memory[id].raw)

    def ranges(self) -> list[DeviceRange]:
        return [DeviceRange(ctypes.addressof(each), len(each), {id: 0}) for id, each in self.memory.items()]

    def read(self, spans: Sequence[Span]) -> Any:
        for span in spans:
            ctypes.memmove(span.host, span.device, span.size)
            self.moved += span.size
        return SimpleNamespace(wait=lambda _timeout: 0.0, done=lambda: 0)

    def hash(self, where: DeviceRange, key: HashKey, chunk_bytes: int, timeout: float) -> ChunkHashes:
        found = {id: hash_bytes(self.blind.get(id, self.holds(id)), key, chunk_bytes) for id in where.offsets}
        return ChunkHashes(chunk_bytes, found)


@contextmanager
def holding(device: Device) -> Iterator[Holding]:
    arena = Arena(lambda _at, _n: None, lambda _at: None, segment_bytes=2 << 20, limit_bytes=1 << 30, threads=2)
    made = Holding(cast("Any", SimpleNamespace(drain=device)), arena, "GPU-1", "llm/7")
    try:
        look(made, device)
        yield made
    finally:
        arena.close()


def look(made: Holding, device: Device) -> None:
    """What the program has by now."""
    for id in [*made.specs]:
        if id not in device.memory and made.live:
            made.live.forget(id)
    made.ranges = device.ranges()
    made.specs = {id: HandleSpec(id, len(each)) for id, each in device.memory.items()}


def image(made: Holding, parent: Mapping[int, bytes]) -> dict[int, bytes]:
    """As its writer puts it together."""
    found = read(made.seal_for_image(ABOUT).to_memfd(), PartialTable.from_fd)
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
    """One chunk is of this value."""
    at = number * CHUNK_BYTES % max(1, len(data))
    at -= at % CHUNK_BYTES
    size = min(CHUNK_BYTES, len(data) - at)
    return data[:at] + bytes([value]) * size + data[at + size :]


@dataclass(frozen=True)
class Act:
    """On what is held: write a chunk, free, or allocate."""

    kind: int
    which: int
    number: int
    value: int


ACTS = st.lists(st.builds(Act, st.integers(0, 5), st.integers(0, 9), st.integers(0, 3), st.integers(0, 2)), max_size=8)


def act(device: Device, acts: Sequence[Act], ids: Iterator[int]) -> None:
    for each in acts:
        held = sorted(device.memory)
        if each.kind == 0 or not held:
            device.put(next(ids), bytes([each.value]) * SIZES[each.which % len(SIZES)])
        elif each.kind == 1:
            del device.memory[held[each.which % len(held)]]
        else:
            id = held[each.which % len(held)]
            device.put(id, written(device.holds(id), each.number, each.value))


@settings(max_examples=150, deadline=None)
@given(first=ACTS, then=ACTS, last=ACTS, live=st.booleans(), paranoid=st.booleans(), has_parent=st.booleans())
def test_what_is_copied_and_what_the_parent_has_is_what_lay_there_at_the_cut(
    first: list[Act], then: list[Act], last: list[Act], live: bool, paranoid: bool, has_parent: bool
) -> None:
    device, ids = Device(), iter(range(1, 1000))
    device.put(next(ids), random.Random(1).randbytes(SIZES[3]))
    act(device, first, ids)
    before = {id: device.holds(id) for id in device.memory} if has_parent else {}
    act(device, then, ids)
    with holding(device) as made:
        made.parent = baseline(before) if has_parent else None
        if live:
            copy_live(made, LONG, lambda _: None)
            act(device, last, ids)
            look(made, device)
        now, device.moved = {id: device.holds(id) for id in device.memory}, 0
        done = copy_out(made, LONG, lambda _: None, paranoid)
        assert image(made, before) == now
        total = sum(map(len, now.values()))
        assert done["bytes"] == total
        if paranoid:
            assert device.moved >= total
        elif now == before:
            assert device.moved == 0


def test_what_the_parent_has_is_not_copied_while_it_runs_either() -> None:
    device = Device()
    device.put(1, random.Random(1).randbytes(8 * CHUNK_BYTES))
    before = {1: device.holds(1)}
    device.put(1, written(device.holds(1), 3, 7))
    with holding(device) as made:
        made.parent = baseline(before)
        told: list[dict[str, Any]] = []
        assert copy_live(made, LONG, told.append)["copied"] == device.moved == CHUNK_BYTES
        assert told == [{"bytes": CHUNK_BYTES, "total_bytes": CHUNK_BYTES}]
        assert copy_out(made, LONG, lambda _: None)["copied"] == 0
        assert image(made, before) == {1: device.holds(1)}


def test_nobody_can_restore_from_a_copy_that_lacks_something() -> None:
    device = Device()
    device.put(1, random.Random(1).randbytes(3 * CHUNK_BYTES))
    with holding(device) as made:
        made.parent = baseline({1: device.holds(1)})
        copy_out(made, LONG, lambda _: None)
        with pytest.raises(WrongState, match="for an image alone"):
            made.seal(ABOUT)
        with pytest.raises(DamagedTable):
            read(made.seal_for_image(ABOUT).to_memfd(), SealedTable.from_fd)
        made.forget_copy()
        look(made, device)
        assert copy_out(made, LONG, lambda _: None)["copied"] == 3 * CHUNK_BYTES, (
            "the parent is forgotten with the copy"
        )
        assert {each.spec.id for each in made.seal(ABOUT).handles} == {1}


def test_a_live_copy_that_came_to_no_cut_is_sealed_for_nobody() -> None:
    device = Device()
    device.put(1, bytes(100))
    with holding(device) as made:
        copy_live(made, LONG, lambda _: None)
        made.layout = made.live.layout if made.live else None
        for seal in (made.seal, made.seal_for_image):
            with pytest.raises(WrongState):
                seal(ABOUT)


def test_paranoid_finds_what_a_hash_missed_in_a_live_copy() -> None:
    """Without it the old bytes go into the image: that is what the hash stands for."""
    for paranoid in (False, True):
        device = Device()
        device.put(1, random.Random(1).randbytes(3 * CHUNK_BYTES))
        with holding(device) as made:
            copy_live(made, LONG, lambda _: None)
            old = device.blind[1] = device.holds(1)
            device.put(1, old[:-1] + bytes([old[-1] ^ 1]))
            look(made, device)
            if paranoid:
                with pytest.raises(HashMissed, match="allocation 1"):
                    copy_out(made, LONG, lambda _: None, paranoid)
            else:
                copy_out(made, LONG, lambda _: None)
                assert image(made, {}) == {1: old}


def test_paranoid_copies_what_the_parent_is_said_to_have() -> None:
    """The image's writer compares the names."""
    device = Device()
    device.put(1, random.Random(1).randbytes(3 * CHUNK_BYTES))
    old = device.blind[1] = device.holds(1)
    device.put(1, old[:-1] + bytes([old[-1] ^ 1]))
    with holding(device) as made:
        made.parent = baseline({1: old})
        copy_out(made, LONG, lambda _: None, paranoid=True)
        assert made.seal_for_image(ABOUT).chunks == {1: bytes([Where.BOTH]) * 3}
        assert image(made, {}) == {1: device.holds(1)}


@given(st.data())
def test_a_table_of_a_copy_that_is_not_what_was_sealed_is_refused(data: st.DataObject) -> None:
    table = SealedTable("llm", 7, 8, 9, {0: "GPU-1"}, (), (), ())
    whole = PartialTable.whole(table)
    text = bytearray(read(whole.to_memfd(), raw))
    assert read(sealed_memfd("t", bytes(text)), PartialTable.from_fd) == whole
    text[data.draw(st.integers(0, len(text) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedTable):
        read(sealed_memfd("t", bytes(text)), PartialTable.from_fd)


def test_what_is_no_baseline_is_refused() -> None:
    whole = Baseline(KEY, {3: (300_000, bytes(32)), 4: (1, bytes(range(16)))})
    text = read(whole.to_memfd(), raw)
    assert read(sealed_memfd("b", text), Baseline.from_fd) == whole
    for cut in (text[:-1], text[: 8 + 32 + 7], text[:20], b"GCRTABLE" + text[8:]):
        with pytest.raises(UsageError):
            read(sealed_memfd("b", cut), Baseline.from_fd)
