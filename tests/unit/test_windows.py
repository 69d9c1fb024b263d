"""Windows of an image: every chunk passes once, whole, and nothing that is wrong gets through."""

import os
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imaging import CIPHERS, bytes_of, write

from gcr.drain import HandleSpec
from gcr.errors import UsageError
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.lines import Slots
from gcr.image.chunks.windows import ImagedLine, lines_of
from gcr.image.crypto.cipher import Cipher
from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged
from gcr.memory.addresses import HUGE_PAGE
from gcr.memory.layout import SealedHandle, SealedTable
from gcr.memory.memfiles import NotASegment, filled_memfd

CHUNK = 16  # bytes, where nothing is stored
PID, DEVICE = 7, "GPU-1"


@st.composite
def tables(draw: st.DrawFn) -> SealedTable:
    """Returns a table of two devices, allocations in no order, with gaps between some."""
    places = draw(st.lists(st.tuples(st.integers(1, 5 * CHUNK), st.integers(0, CHUNK), st.booleans()), min_size=1))
    handles, ends = [], {"GPU-1": 0, "GPU-2": 0}
    for number, (size, gap, first) in enumerate(places):
        device = "GPU-1" if first else "GPU-2"
        start = ends[device] + max(0, gap - CHUNK // 2)
        handles.append(SealedHandle(HandleSpec(number + 1, size), device, start))
        ends[device] = start + size
    handles = draw(st.permutations(handles))
    return SealedTable("llm", PID, 8, 9, {0: "GPU-1", 1: "GPU-2"}, tuple(handles), (), ())


@given(tables(), st.integers(CHUNK, 8 * CHUNK))
def test_windows_have_every_chunk_once_and_no_gap(sealed: SealedTable, most: int) -> None:
    numbers, reference = dict[tuple[str, int], int](), 0  # of the chunk that begins there
    for handle in sealed.handles:
        for start in range(0, handle.spec.size, CHUNK):
            numbers[handle.device, handle.offset + start] = reference
            reference += 1
    seen = []
    for (_, device), line in lines_of([sealed], CHUNK).items():
        for offset, size in line.windows(most):
            assert 0 < size <= most
            at = offset
            for first, place, length in line.spans(offset, size):
                for number, start in enumerate(range(at, at + length, CHUNK), first):
                    assert number == numbers[device, start]
                    seen.append(number)
                assert place == at - offset
                at += length
            assert at == offset + size
        assert sum(size for _, size in line.windows(most)) == line.size
    assert sorted(seen) == list(range(reference))


def test_windows_are_as_large_as_they_may_be() -> None:
    line = ImagedLine.of([(SealedHandle(HandleSpec(1, 10 * CHUNK), DEVICE, 0), 0)], CHUNK)
    assert [size for _, size in line.windows(4 * CHUNK + 1)] == [4 * CHUNK, 4 * CHUNK, 2 * CHUNK]
    with pytest.raises(UsageError, match="no room for a chunk"):
        next(line.windows(CHUNK - 1))


@pytest.mark.parametrize(
    ("offset", "size"),
    [(1, CHUNK), (0, CHUNK - 1), (0, CHUNK + 1), (0, 0), (0, 4 * CHUNK), (3 * CHUNK, CHUNK), (-CHUNK, CHUNK), (99, 1)],
)
def test_what_is_no_window_is_refused(offset: int, size: int) -> None:
    """Half a chunk, a gap, what is beyond: two chunks and a half, a gap of half a chunk, another two."""
    handles = [SealedHandle(HandleSpec(1, 40), DEVICE, 0), SealedHandle(HandleSpec(2, 32), DEVICE, 48)]
    line = ImagedLine.of([(handles[0], 0), (handles[1], 3)], CHUNK)
    assert line.spans(32, 8) == [(2, 0, 8)] and line.spans(48, CHUNK) == [(3, 0, CHUNK)]
    if (offset, size) == (3 * CHUNK, CHUNK):
        offset = 3 * CHUNK - 8  # the gap
    with pytest.raises(UsageError):
        line.spans(offset, size)


@settings(max_examples=15)
@given(
    st.lists(st.integers(1, 3 * CHUNK_BYTES), min_size=1, max_size=5), st.integers(1, 6), st.sampled_from([*CIPHERS])
)
def test_what_was_written_comes_back_window_by_window(sizes: Sequence[int], slot_chunks: int, cipher: str) -> None:
    allocations = [bytes(size) if number % 3 == 1 else bytes_of(number, size) for number, size in enumerate(sizes)]
    with TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store", CIPHERS[cipher])
        write(store, "warm", allocations)
        found = bytearray(sum(sizes))
        slot_bytes = slot_chunks * CHUNK_BYTES
        came: list[int] = []
        with ImageReader(store, "warm", 3, came.append) as reader:
            windows = [*reader.lines[PID, DEVICE].windows(slot_bytes)]
            random.Random(0).shuffle(windows)
            slot = bytearray(slot_bytes)
            for offset, size in windows:
                reader.read(PID, DEVICE, offset, memoryview(slot)[:size])
                found[offset : offset + size] = slot[:size]
        assert found == b"".join(allocations)
        assert sum(came) == len(found)


@pytest.mark.parametrize("cipher", CIPHERS.values(), ids=CIPHERS)
def test_damage_is_found_in_its_own_window(tmp_path: Path, cipher: Cipher) -> None:
    store = Store(tmp_path / "store", cipher)
    write(store, "warm", [bytes_of(1, 4 * CHUNK_BYTES)])
    (pack,) = store.packs.folder.glob("*.pack")
    with ImageReader(store, "warm") as reader:
        with pack.open("r+b") as file:  # while it is read
            file.seek(4096 + 2 * CHUNK_BYTES + 77)
            before = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([before[0] ^ 1]))
        refused = []
        for offset, size in reader.lines[PID, DEVICE].windows(CHUNK_BYTES):
            try:
                reader.read(PID, DEVICE, offset, memoryview(bytearray(size)))
            except Damaged:
                refused.append(offset)
        assert refused == [2 * CHUNK_BYTES]


def test_of_a_stranger_nothing_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    write(store, "warm", [bytes_of(1, 100)])
    with ImageReader(store, "warm") as reader:
        for pid, device in ((8, DEVICE), (PID, "GPU-2")):
            with pytest.raises(UsageError, match="has nothing of process"):
                reader.read(pid, device, 0, memoryview(bytearray(100)))


def test_a_slot_is_where_its_owner_sees_it() -> None:
    fds = [filled_memfd(HUGE_PAGE), filled_memfd(2 * HUGE_PAGE)]
    try:
        slots = Slots(fds, HUGE_PAGE)
        for number in range(3):
            slots.slot(number, 5)[:] = b"slot%d" % number
        assert os.pread(fds[0], 5, 0) == b"slot0"
        assert os.pread(fds[1], 5, HUGE_PAGE) == b"slot2"
        for number, size in ((3, 1), (-1, 1), (0, HUGE_PAGE + 1), (2, -1)):
            with pytest.raises(UsageError):
                slots.slot(number, size)
        slots.close()
    finally:
        for fd in fds:
            os.close(fd)


def test_a_slot_is_no_memory_that_can_be_taken_away(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb+") as file:
        file.truncate(HUGE_PAGE)
        with pytest.raises(NotASegment):
            Slots([file.fileno()], HUGE_PAGE)
