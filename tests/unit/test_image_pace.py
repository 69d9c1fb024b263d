"""A busy disk: room is made ahead of the writes, and the next read is asked for while names are computed."""

import errno
import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Event, Lock
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imaging import bytes_of, check, described, mapped, read, write

from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.entry import BLOCK
from gcr.image.crypto.ciphers import cipher_of
from gcr.image.disk import bounce
from gcr.image.disk.bounce import huge_buffer
from gcr.image.disk.room import allocate
from gcr.image.disk.threads import AHEAD, all_of, groups
from gcr.image.pack import writer as packing
from gcr.image.pack.format import GROUP_BYTES as GROUP
from gcr.image.pack.reader import OpenPack, PackReader
from gcr.image.pack.writer import WAITING, WRITERS, PackWriter
from gcr.image.read import fetching
from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged

pytestmark = pytest.mark.on_disk

PATIENCE = 10.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def room_from_the_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "ROOM_FROM", 0)


# ---- room ahead -----------------------------------------------------------------------------------------------------


def test_a_file_is_as_long_as_there_is_room_and_zero_where_nothing_was_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(b"before")
        file.flush()
        allocate(file.fileno(), 0, 5000)
        allocate(file.fileno(), 5000, 3000)
        assert path.stat().st_blocks * 512 >= 8000
    assert path.read_bytes() == b"before".ljust(8000, b"\0")


def test_no_room_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match="File too large"):
        allocate(file.fileno(), 0, 1 << 62)
    with (tmp_path / "file").open("rb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        allocate(file.fileno(), 0, 1)


@pytest.mark.usefixtures("room_from_the_first_byte")
def test_chunks_are_written_within_the_length_of_the_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it they would wait for each other."""
    data, beyond, real = [bytes_of(1, 3 * GROUP + 5000), bytes_of(2, 9000)], [], os.pwritev

    def watched(fd: int, pieces: Sequence[memoryview], at: int) -> int:
        if at + sum(map(len, pieces)) > os.fstat(fd).st_size:
            beyond.append(at)
        return real(fd, pieces, at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", watched)
        write(store, "warm", data)
    assert not beyond
    (path,) = store.packs.folder.iterdir()
    assert path.stat().st_size == PackReader(path, store.cipher).pack.bytes < sum(map(len, data)) + 10 * BLOCK
    check(store, "warm")
    assert read(store, "warm") == data


def test_a_small_pack_asks_for_no_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "allocate", lambda *_: pytest.fail("it did"))
    write(store, "warm", [bytes_of(1, GROUP)])


@pytest.mark.usefixtures("room_from_the_first_byte")
def test_what_is_asked_for_is_twice_what_there_is_and_never_much(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(packing, "allocate", lambda _fd, at, size: asked.append((at, size)))
    monkeypatch.setattr(packing, "ROOM_MOST", 3 * GROUP)
    writer = PackWriter(store.packs.folder, store.cipher, GROUP)
    for _ in range(16):
        writer.place([(bytes(32), CHUNK_BYTES)] * (GROUP // CHUNK_BYTES))
    writer.abandon()
    ends = [at + size for at, size in asked]
    assert [at for at, _ in asked] == [0, *ends[:-1]]
    assert ends[0] == 2 * (GROUP + BLOCK)
    assert all(size <= 4 * GROUP + BLOCK for _, size in asked[1:])
    assert len(asked) < 8


@pytest.mark.usefixtures("room_from_the_first_byte")
@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.ENOSPC, errno.EIO, errno.EINTR], ids=errno.errorcode.get)
@pytest.mark.parametrize("number", range(3))
def test_where_no_room_is_had_it_is_written_all_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: int, number: int
) -> None:
    """The pack is as long as it should be, though some of what was asked for may have been made."""
    asked = [0]

    def some(fd: int, at: int, size: int) -> None:
        asked[0] += 1
        if asked[0] > number:
            os.posix_fallocate(fd, at, size // 2)
            raise OSError(error, os.strerror(error))
        allocate(fd, at, size)

    monkeypatch.setattr(packing, "allocate", some)
    monkeypatch.setattr(packing, "ROOM_MOST", BLOCK)
    data = [bytes_of(1, 5 * GROUP)]
    write(store, "warm", data)
    assert asked[0] == number + 1, "it went on asking, or never did"
    check(store, "warm")
    assert read(store, "warm") == data


# ---- one stage beside the other -------------------------------------------------------------------------------------


def test_the_next_is_read_while_names_are_compared(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread reads, one compares."""
    data, second = bytes_of(1, 3 * GROUP), Event()
    write(store, "warm", [data])
    reads, real_blocks, real_name = [0], OpenPack.blocks, store.cipher.name_of

    def counted(self: OpenPack, block: int, target: memoryview) -> None:
        reads[0] += 1
        if reads[0] == 2:
            second.set()
        real_blocks(self, block, target)

    def patient(_self: object, data: Any) -> bytes:
        assert second.wait(PATIENCE), "nothing else was read"
        return real_name(data)

    monkeypatch.setattr(fetching, "READERS", 1)
    with ImageReader(store, "warm", threads=1) as reader:
        monkeypatch.setattr(OpenPack, "blocks", counted)
        monkeypatch.setattr(type(store.cipher), "name_of", patient)
        found = bytearray(len(data))
        reader.read(7, "GPU-1", 0, memoryview(found))
    assert found == data


def test_a_disk_is_asked_for_what_lies_in_a_row(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few threads ask, for any number of threads that compute names."""
    data, real_blocks = bytes_of(1, 16 * fetching.GROUP_BYTES), OpenPack.blocks
    write(store, "warm", [data])
    asked, under_way, most, lock, all_ask = list[int](), [0], [0], Lock(), Event()

    def slow(self: OpenPack, block: int, target: memoryview) -> None:
        with lock:
            asked.append(block)
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
            if under_way[0] == fetching.READERS:
                all_ask.set()
        assert all_ask.wait(PATIENCE), "the others do not ask"
        time.sleep(0.005)
        real_blocks(self, block, target)
        with lock:
            under_way[0] -= 1

    monkeypatch.setattr(OpenPack, "blocks", slow)
    found = bytearray(len(data))
    with ImageReader(store, "warm", threads=8) as reader:
        reader.read(7, "GPU-1", 0, memoryview(found))
    assert found == data
    assert most == [fetching.READERS]
    assert len(asked) == 16
    for number, at in enumerate(asked):  # each of the others may be late with one
        assert sum(later < at for later in asked[number:]) < fetching.READERS


def test_the_next_is_named_while_one_is_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    data, second, real = bytes_of(1, 3 * GROUP), Event(), PackWriter.write
    placed, real_place = [0], PackWriter.place

    def counted(self: PackWriter, chunks: Any) -> Any:
        placed[0] += 1
        if placed[0] == 2:
            second.set()
        return real_place(self, chunks)

    def patient(self: PackWriter, entries: Any, some: Any) -> None:
        assert second.wait(PATIENCE), "nothing else was named"
        real(self, entries, some)

    monkeypatch.setattr(PackWriter, "place", counted)
    monkeypatch.setattr(PackWriter, "write", patient)
    with ImageWriter(store, "warm", threads=1) as writer:
        writer.add([(mapped(data), ())])
        writer.commit(described("warm", [len(data)]))
    assert read(store, "warm") == [data]


def test_a_disk_is_given_to_write_by_few_while_others_fill_buffers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, writing, filled, lock = bytes_of(1, 4 * WRITERS * GROUP), [0], [0], Lock()
    most, all_filled, all_write = [0], Event(), Event()
    real_fill, real_write = type(store.cipher.pack("")).to_disk, os.pwritev

    def counted(self: object, *args: Any) -> None:
        real_fill(self, *args)
        with lock:
            filled[0] += 1
            if filled[0] == WRITERS + WAITING:
                all_filled.set()

    def patient(fd: int, pieces: Sequence[memoryview], at: int) -> int:
        if len(pieces[0]) != GROUP:
            return real_write(fd, pieces, at)
        with lock:
            writing[0] += 1
            most[0] = max(most[0], writing[0])
            if writing[0] == WRITERS:
                all_write.set()
        assert all_write.wait(PATIENCE), "the others do not write"
        assert all_filled.wait(PATIENCE), "nothing else was made ready"
        done = real_write(fd, pieces, at)
        time.sleep(0.002)
        with lock:
            writing[0] -= 1
        return done

    with monkeypatch.context() as patched:
        patched.setattr(type(store.cipher.pack("")), "to_disk", counted)
        patched.setattr(os, "pwritev", patient)
        write(store, "warm", [data], threads=16)
    assert most == [WRITERS]
    assert read(store, "warm") == [data]


def test_what_is_damaged_is_found_behind_what_is_still_to_be_read(store: Store) -> None:
    data = bytes_of(1, 4 * GROUP)
    write(store, "warm", [data])
    (path,) = store.packs.folder.iterdir()
    with path.open("r+b") as file:
        file.seek(BLOCK + CHUNK_BYTES)
        file.write(b"\0" * 16)
    with ImageReader(store, "warm", threads=2) as reader, pytest.raises(Damaged):
        reader.read(7, "GPU-1", 0, memoryview(bytearray(len(data))))


@pytest.mark.parametrize("way", ["plain", "encrypted"])
def test_of_what_is_damaged_no_byte_goes_where_it_was_asked_for(tmp_path: Path, way: str) -> None:
    """Nor of what was read with it."""
    store = Store(tmp_path / "store", cipher_of({"plain": None, "encrypted": bytes(32)}[way]))
    chunks = 2 * GROUP // CHUNK_BYTES
    write(store, "warm", [bytes_of(1, chunks * CHUNK_BYTES)])
    (path,) = store.packs.folder.iterdir()
    with path.open("r+b") as file:
        file.seek(BLOCK + (chunks - 2) * CHUNK_BYTES)
        file.write(b"\0" * 16)
    before = b"\xa5" * GROUP
    found = bytearray(before)
    with ImageReader(store, "warm") as reader, pytest.raises(Damaged):
        reader.read(7, "GPU-1", GROUP, memoryview(found))
    assert found == before


def test_chunks_that_lie_elsewhere_are_read_from_there(store: Store) -> None:
    """Though they are in the same pack."""
    chunks = [bytes_of(number, CHUNK_BYTES) for number in (1, 2, 3, 1, 3, 2, 2)]
    write(store, "warm", [b"".join(chunks)])
    assert read(store, "warm") == [b"".join(chunks)]


@given(st.lists(st.integers(0, 50)), st.integers(1, 60))
def test_a_group_is_as_large_as_may_be(sizes: list[int], most: int) -> None:
    found = [*groups(sizes, lambda size: size, most)]
    assert [size for group in found for size in group] == sizes
    assert all(len(group) == 1 or sum(group) <= most for group in found)
    assert all(sum(one) + other[0] > most for one, other in pairwise(found))


@given(st.lists(st.integers(0, 3)))
def test_a_group_ends_where_the_next_does_not_follow(numbers: list[int]) -> None:
    found = [*groups(numbers, lambda _: 1, 1000, lambda last, number: number == last + 1)]
    assert [number for group in found for number in group] == numbers
    assert all(b == a + 1 for group in found for a, b in pairwise(group))
    assert all(other[0] != one[-1] + 1 for one, other in pairwise(found))


@pytest.mark.parametrize("chunk_bytes", [CHUNK_BYTES, 16 << 20])
def test_memory_for_reading_and_writing_is_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    """This holds for any size of chunks."""
    made, most, ahead = Counter[int](), max(GROUP, chunk_bytes), max(fetching.GROUP_BYTES, chunk_bytes)

    def making(size: int) -> memoryview:
        made[size] += 1
        return huge_buffer(size)

    monkeypatch.setattr(bounce, "huge_buffer", making)
    data = bytes_of(1, 40 << 20)
    write(store, "warm", [data], chunk_bytes=chunk_bytes)
    assert read(store, "warm") == [data]
    assert made.pop(ahead) == fetching.READERS + fetching.WAITING
    assert made.pop(most + BLOCK) == WRITERS + WAITING
    assert not made or max(made) < 1 << 20


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_of_any_stage_is_the_last_of_all(failing: int) -> None:
    begun, under_way = [0, 0], [0]

    def work(stage: int, number: int) -> int:
        begun[stage] += 1
        under_way[0] += 1
        try:
            time.sleep(0.002)
            if stage == failing and number == 2 * AHEAD:
                raise KeyError(number)
        finally:
            under_way[0] -= 1
        return number

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        with pytest.raises(KeyError):
            all_of(
                iter(range(6 * AHEAD)), partial(one.submit, partial(work, 0)), partial(other.submit, partial(work, 1))
            )
        assert under_way == [0]
        over = [*begun]
        assert 2 * AHEAD < begun[failing] < 5 * AHEAD
        time.sleep(0.02)
        assert begun == over


def test_each_goes_through_both_stages_and_between_them_in_order() -> None:
    between, found = list[int](), list[int]()

    def first(number: int) -> int:
        time.sleep(0.001 * (number % 5))
        return number + 1

    def in_order(number: int) -> int:
        between.append(number)
        return 2 * number

    with ThreadPoolExecutor(3) as one, ThreadPoolExecutor(2) as other:
        all_of(iter(range(3 * AHEAD)), partial(one.submit, first), partial(other.submit, found.append), in_order)
    assert between == [*range(1, 3 * AHEAD + 1)]
    assert sorted(found) == [2 * number for number in between]


def test_chunks_lie_in_a_pack_as_they_will_be_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of them is named first."""
    data, real = bytes_of(1, 4 * GROUP), store.cipher.name_of
    first = data[:CHUNK_BYTES]

    def slow(_self: object, some: Any) -> bytes:
        time.sleep(0.05 * (bytes(some[:64]) == first[:64]))
        return real(some)

    monkeypatch.setattr(type(store.cipher), "name_of", slow)
    write(store, "warm", [data])
    (path,) = store.packs.folder.iterdir()
    assert path.read_bytes()[BLOCK:][: len(data)] == data
