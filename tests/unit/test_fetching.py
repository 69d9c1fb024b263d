"""Bringing chunks: nothing goes where it was asked for unless it is right, and after an error nothing any more."""

import errno
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from imaging import bytes_of, mapped
from msgspec.structs import replace

from gcr.image.chunks.chunk import name_of
from gcr.image.chunks.entry import BLOCK
from gcr.image.chunks.index import Run
from gcr.image.crypto.cipher import PLAIN
from gcr.image.disk.bounce import huge_buffer
from gcr.image.pack.reader import OpenPack, PackReader
from gcr.image.pack.writer import PackWriter
from gcr.image.read import fetching
from gcr.image.read.fetching import READERS, WAITING, Fetcher, Group, Into
from gcr.imageerrors import Damaged
from gcr.testing.machine import until

pytestmark = pytest.mark.on_disk

SIZE = 2 * BLOCK
COUNT = 40
BUFFERS = READERS + WAITING


@pytest.fixture
def pack(tmp_path: Path) -> PackReader:
    return packed(tmp_path, 1)


def packed(folder: Path, seed: int) -> PackReader:
    """Chunks of SIZE bytes, each of its own."""
    chunks = [bytes_of(seed * COUNT + number, SIZE) for number in range(COUNT)]
    writer = PackWriter(folder, PLAIN, COUNT * SIZE)
    writer.write(writer.place([(name_of(chunk), SIZE) for chunk in chunks]), [*map(mapped, chunks)])
    return PackReader(folder / f"{writer.finish().id}.pack", PLAIN)


def groups_of(pack: PackReader, memory: memoryview) -> Sequence[Group]:
    return [
        Group(pack, run, memory[number * SIZE : (number + 1) * SIZE])
        for number, run in enumerate(pack.chunks.all().groups(SIZE))
    ]


def expected(seed: int) -> bytes:
    return b"".join(bytes_of(seed * COUNT + number, SIZE) for number in range(COUNT))


def damage(pack: PackReader, number: int) -> None:
    with pack.path.open("r+b") as file:
        file.seek(pack.chunks.borders[number] * BLOCK)
        file.write(b"other bytes")


@pytest.fixture
def damaged() -> list[PackReader]:
    return []


@pytest.fixture
def fetcher(damaged: list[PackReader]) -> Iterator[Fetcher]:
    with Fetcher(3, SIZE, damaged.append) as made:
        yield made
        assert made._free.qsize() == BUFFERS, "a buffer is lost, or is there twice"
        assert len({id(made._free.get()) for _ in range(BUFFERS)}) == BUFFERS


def test_all_comes_and_is_told_of(fetcher: Fetcher, pack: PackReader, damaged: list[PackReader]) -> None:
    memory, told = memoryview(bytearray(COUNT * SIZE)), list[int]()
    fetcher.bring(groups_of(pack, memory), told.append)
    assert memory == expected(1)
    assert told == [SIZE] * COUNT
    assert not damaged


def test_a_run_that_fits_its_target_is_read_there_and_compared(
    fetcher: Fetcher, pack: PackReader, damaged: list[PackReader]
) -> None:
    memory = huge_buffer(COUNT * SIZE)[: COUNT * SIZE]
    groups = [replace(group, into=Into.TARGET) for group in groups_of(pack, memory)]
    assert all(pack.fits(group.run, group.target) for group in groups)
    assert not pack.fits(groups[0].run, memory[1 : SIZE + 1])  # no block of a disk begins there
    assert not pack.fits(groups[0].run, memory[:BLOCK])
    buffers = [fetcher._free.get() for _ in range(BUFFERS)]  # none is needed
    fetcher.bring(groups, lambda _: None)
    assert memory == expected(1)
    damage(pack, 7)
    with pytest.raises(Damaged, match=f"block {pack.chunks.borders[7]} "):
        fetcher.bring(groups, lambda _: None)
    assert damaged == [pack]
    for each in buffers:
        fetcher._free.put(each)


def test_what_the_page_cache_has_is_read_where_it_fits_and_all_else_into_buffers(
    fetcher: Fetcher, pack: PackReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, real = list[int](), PackReader.take

    def take(self: PackReader, run: Run, stored: memoryview, target: memoryview) -> None:
        taken.append(run.first)
        real(self, run, stored, target)

    monkeypatch.setattr(PackReader, "take", take)
    monkeypatch.setattr(OpenPack, "is_cached", lambda _pack, block, _size: block < pack.chunks.borders[10])
    memory = huge_buffer(COUNT * SIZE)[: COUNT * SIZE]
    fetcher.bring(
        [replace(group, into=Into.TARGET_IF_CACHED) for group in groups_of(pack, memory)],
        lambda _: None,
    )
    assert memory == expected(1)
    assert sorted(taken) == [*range(10, COUNT)]


def test_a_pack_that_is_gone_is_said_by_the_read_where_the_page_cache_is_asked_first(
    fetcher: Fetcher, pack: PackReader
) -> None:
    groups = [replace(group, into=Into.TARGET_IF_CACHED) for group in groups_of(pack, huge_buffer(COUNT * SIZE))]
    pack.path.unlink()
    with pytest.raises(Damaged, match="it is not there"):
        fetcher.bring(groups, lambda _: None)


def test_a_call_that_is_stopped_writes_to_no_target_any_more(
    fetcher: Fetcher, pack: PackReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, memory = PackReader.take, bytearray(COUNT * SIZE)

    def slow(self: PackReader, run: Run, stored: memoryview, target: memoryview) -> None:
        time.sleep(0.02)
        real(self, run, stored, target)

    monkeypatch.setattr(PackReader, "take", slow)
    call = fetcher.begin(groups_of(pack, memoryview(memory)), lambda _: None)
    until(lambda: any(memory), 10, "the first groups come")
    call.stop()
    found = bytes(memory)
    assert found != expected(1)
    time.sleep(0.05)
    assert memory == found


def test_several_may_ask_at_once_for_several_packs(fetcher: Fetcher, tmp_path: Path) -> None:
    packs = [packed(tmp_path, seed) for seed in range(4)]
    memories = [memoryview(bytearray(COUNT * SIZE)) for _ in packs]
    asking = [
        Thread(target=fetcher.bring, args=(groups_of(*each), lambda _: None))
        for each in zip(packs, memories, strict=True)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert memories == [expected(seed) for seed in range(4)]


@pytest.mark.parametrize("number", [0, 1, BUFFERS, COUNT - 1])
def test_the_first_that_is_damaged_is_told_and_none_comes_any_more(
    fetcher: Fetcher, pack: PackReader, damaged: list[PackReader], number: int
) -> None:
    for each in {number, COUNT - 1}:
        damage(pack, each)
    memory = bytearray(COUNT * SIZE)
    with pytest.raises(Damaged, match=f"block {pack.chunks.borders[number]} "):
        fetcher.bring(groups_of(pack, memoryview(memory)), lambda _: None)
    assert set(damaged) == {pack}
    found = bytes(memory)
    for each in range(COUNT):
        chunk = found[each * SIZE : (each + 1) * SIZE]
        assert chunk in (bytes(SIZE), expected(1)[each * SIZE : (each + 1) * SIZE])
    assert found[number * SIZE : (number + 1) * SIZE] == bytes(SIZE)
    time.sleep(0.02)
    assert memory == found


def test_an_earlier_group_fails_later_and_is_the_one_that_is_told(
    fetcher: Fetcher, pack: PackReader, damaged: list[PackReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PackReader.take

    def slow(self: PackReader, run: Run, stored: memoryview, target: memoryview) -> None:
        if run.first == 0:
            until(lambda: damaged, 10, "a later one is told")
        real(self, run, stored, target)

    monkeypatch.setattr(PackReader, "take", slow)
    for number in (0, 2):
        damage(pack, number)
    memory = bytearray(COUNT * SIZE)
    with pytest.raises(Damaged, match=f"block {pack.chunks.borders[0]} "):
        fetcher.bring(groups_of(pack, memoryview(memory)), lambda _: None)
    assert memory[:SIZE] == bytes(SIZE) and memory[2 * SIZE : 3 * SIZE] == bytes(SIZE)


def test_whatever_a_step_raises_ends_the_call_and_no_thread(
    fetcher: Fetcher, pack: PackReader, damaged: list[PackReader]
) -> None:
    """There are as many errors as threads: each of them goes on."""
    memory = memoryview(bytearray(COUNT * SIZE))

    def came(_bytes: int) -> None:
        raise SystemExit("told")

    for _ in range(4):
        with pytest.raises(SystemExit, match="told"):
            fetcher.bring(groups_of(pack, memory), came)
    fetcher.bring(groups_of(pack, memory), lambda _: None)
    assert memory == expected(1) and not damaged


def test_what_cannot_be_noted_of_a_pack_is_told(tmp_path: Path) -> None:
    pack, memory = packed(tmp_path, 1), memoryview(bytearray(COUNT * SIZE))
    damage(pack, 3)

    def no_note(_pack: PackReader) -> None:
        raise OSError(errno.EROFS, "no note")

    with Fetcher(2, SIZE, no_note) as made:
        for _ in range(2 + READERS):
            with pytest.raises(OSError, match="no note"):
                made.bring(groups_of(pack, memory), lambda _: None)
        made.bring(groups_of(pack, memory)[4:], lambda _: None)


def test_an_error_keeps_no_memory(fetcher: Fetcher, pack: PackReader) -> None:
    """It keeps none once it was handled, also before the garbage collector looks for circles."""
    damage(pack, 1)
    memory = bytearray(COUNT * SIZE)
    gc.disable()
    try:
        with suppress(Damaged):
            fetcher.bring(groups_of(pack, memoryview(memory)), lambda _: None)
        until(lambda: resizable(memory), 5, "no view of the memory is left")
    finally:
        gc.enable()


def resizable(memory: bytearray) -> bool:
    try:
        memory.append(0)
    except BufferError:
        return False
    return True


def test_after_an_error_the_disk_is_asked_for_no_more(
    fetcher: Fetcher, pack: PackReader, damaged: list[PackReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, real = list[int](), OpenPack.blocks

    def slow(self: OpenPack, block: int, target: memoryview) -> None:
        reads.append(block)
        if block != pack.chunks.borders[0]:
            until(lambda: damaged, 10, "the first was compared")
            time.sleep(0.25)
        real(self, block, target)

    monkeypatch.setattr(OpenPack, "blocks", slow)
    damage(pack, 0)
    with pytest.raises(Damaged):
        fetcher.bring(groups_of(pack, memoryview(bytearray(COUNT * SIZE))), lambda _: None)
    assert len(reads) < COUNT // 2


def test_an_error_is_told_when_nothing_is_moved_any_more(
    fetcher: Fetcher, pack: PackReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, over, real = list[int](), list[int](), PackReader.take

    def slow(self: PackReader, run: Run, stored: memoryview, target: memoryview) -> None:
        begun.append(1)
        if run.first:
            time.sleep(0.1)
        else:
            until(lambda: len(begun) > 1, 10, "another is compared")
        try:
            real(self, run, stored, target)
        finally:
            over.append(1)

    monkeypatch.setattr(PackReader, "take", slow)
    damage(pack, 0)
    with pytest.raises(Damaged):
        fetcher.bring(groups_of(pack, memoryview(bytearray(COUNT * SIZE))), lambda _: None)
    assert 1 < len(begun) == len(over)


def test_after_an_error_it_brings_what_else_is_asked_for(fetcher: Fetcher, pack: PackReader, tmp_path: Path) -> None:
    damage(pack, 5)
    other, memory = packed(tmp_path, 2), memoryview(bytearray(COUNT * SIZE))
    for _ in range(5):
        with pytest.raises(Damaged):
            fetcher.bring(groups_of(pack, memory), lambda _: None)
    fetcher.bring(groups_of(other, memory), lambda _: None)
    assert memory == expected(2)


def test_an_error_of_the_disk_is_told(
    fetcher: Fetcher, pack: PackReader, damaged: list[PackReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = OpenPack.blocks

    def failing(self: OpenPack, block: int, target: memoryview) -> None:
        if block == pack.chunks.borders[7]:
            raise OSError(errno.EIO, "no")
        real(self, block, target)

    monkeypatch.setattr(OpenPack, "blocks", failing)
    memory = memoryview(bytearray(COUNT * SIZE))
    with pytest.raises(OSError, match="no"):
        fetcher.bring(groups_of(pack, memory), lambda _: None)
    assert not damaged


def test_groups_that_cannot_be_made_end_it(fetcher: Fetcher, pack: PackReader) -> None:
    memory = bytearray(COUNT * SIZE)

    def groups() -> Iterator[Group]:
        yield from groups_of(pack, memoryview(memory))[:9]
        raise KeyError("no more")

    with pytest.raises(KeyError):
        fetcher.bring(groups(), lambda _: None)
    found = bytes(memory)
    time.sleep(0.02)
    assert memory == found


def test_a_slow_comparison_holds_the_disk_up_only_when_no_buffer_is_left(
    fetcher: Fetcher, pack: PackReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none is read into that is still compared."""
    reads, all_read, real_blocks, real_take = list[int](), Event(), OpenPack.blocks, PackReader.take

    def counted(self: OpenPack, block: int, target: memoryview) -> None:
        reads.append(block)
        if len(reads) == BUFFERS:
            all_read.set()
        real_blocks(self, block, target)

    def patient(self: PackReader, run: Run, stored: memoryview, target: memoryview) -> None:
        assert all_read.wait(10), "the disk was not asked"
        time.sleep(0.01)
        assert len(reads) - len(taken) <= BUFFERS
        real_take(self, run, stored, target)
        taken.append(1)

    taken = list[int]()
    monkeypatch.setattr(OpenPack, "blocks", counted)
    monkeypatch.setattr(PackReader, "take", patient)
    memory = memoryview(bytearray(COUNT * SIZE))
    fetcher.bring(groups_of(pack, memory), lambda _: None)
    assert memory == expected(1)
    assert len(reads) == COUNT


def test_a_thread_has_one_pack_open_and_none_in_the_end(tmp_path: Path) -> None:
    packs = [packed(tmp_path, seed) for seed in range(12)]
    memory, most = memoryview(bytearray(COUNT * SIZE)), 0
    with Fetcher(2, SIZE, lambda _: None) as made:
        for each in packs:
            made.bring(groups_of(each, memory), lambda _: None)
            most = max(most, opened(tmp_path))
    assert 0 < most <= 2 * READERS  # one of each past the page cache
    assert opened(tmp_path) == 0


def test_after_a_pack_that_is_not_there_the_one_before_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers of its descriptors may be those of other files by then."""
    monkeypatch.setattr(fetching, "READERS", 1)
    one, gone = packed(tmp_path, 1), packed(tmp_path, 2)
    gone.path.unlink()
    memory = memoryview(bytearray(COUNT * SIZE))
    with Fetcher(2, SIZE, lambda _: None) as made:
        made.bring(groups_of(one, memory), lambda _: None)
        with pytest.raises(Damaged, match="not there"):
            made.bring(groups_of(gone, memory), lambda _: None)
        memory[:] = bytes(COUNT * SIZE)
        made.bring(groups_of(one, memory), lambda _: None)
    assert memory == expected(1)


def opened(folder: Path) -> int:
    return sum(os.path.realpath(link).startswith(f"{folder}/") for link in Path("/proc/self/fd").iterdir())


def test_what_cannot_have_its_threads_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    before, started, real = threading.active_count(), [0], Thread.start

    def some(self: Thread) -> None:
        started[0] += 1
        if started[0] == 3 + READERS // 2:
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(Thread, "start", some)
    with pytest.raises(OSError, match="no thread can be started"):
        Fetcher(3, SIZE, lambda _: None).__enter__()
    assert threading.active_count() == before


def test_its_threads_are_there_from_the_beginning(pack: PackReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without a thread would keep a buffer that no other job can use."""
    memory = memoryview(bytearray(COUNT * SIZE))
    with Fetcher(3, SIZE, lambda _: None) as made:
        monkeypatch.setattr(Thread, "start", lambda _: pytest.fail("another thread"))
        made.bring(groups_of(pack, memory), lambda _: None)
    assert memory == expected(1)
