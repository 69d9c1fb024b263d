"""Bringing chunks: nothing goes where it was asked for unless it is right, and after an error nothing any more."""

import itertools
import os
import sys
import threading
import time
from pathlib import Path
from threading import Event, Thread

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fetched import BUFFERS, COUNT, SIZE, damage, expected, groups_of, packed
from msgspec.structs import replace

from gcr.image.chunks.entry import BLOCK
from gcr.image.chunks.index import Run
from gcr.image.disk.bounce import huge_buffer
from gcr.image.pack.reader import OpenPack, PackReader
from gcr.image.read import fetching
from gcr.image.read.fetching import READERS, Fetcher, Into
from gcr.imageerrors import Damaged
from gcr.testing.machine import until

pytestmark = pytest.mark.on_disk


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
    real, memory, numbers, stopping = PackReader.take, bytearray(COUNT * SIZE), itertools.count(), Event()

    def slow(self: PackReader, run: Run, stored: memoryview, target: memoryview) -> None:
        assert next(numbers) == 0 or stopping.wait(10)
        time.sleep(0.02)
        real(self, run, stored, target)

    monkeypatch.setattr(PackReader, "take", slow)
    call = fetcher.begin(groups_of(pack, memoryview(memory)), lambda _: None)
    until(lambda: any(memory), 10, "the first group comes")
    stopping.set()
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
    before, started, real = {*threading.enumerate()}, [0], Thread.start

    def some(self: Thread) -> None:
        started[0] += 1
        if started[0] == 3 + READERS // 2:
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(Thread, "start", some)
    with pytest.raises(OSError, match="no thread can be started"):
        Fetcher(3, SIZE, lambda _: None).__enter__()
    assert {*threading.enumerate()} <= before


def test_its_threads_are_there_from_the_beginning(pack: PackReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without a thread would keep a buffer that no other job can use."""
    memory = memoryview(bytearray(COUNT * SIZE))
    with Fetcher(3, SIZE, lambda _: None) as made:
        monkeypatch.setattr(Thread, "start", lambda _: pytest.fail("another thread"))
        made.bring(groups_of(pack, memory), lambda _: None)
    assert memory == expected(1)
