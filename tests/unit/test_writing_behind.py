"""A pack is written behind the back of its writer: no error of a disk is lost, and no buffer."""

import errno
import os
import threading
import time
from pathlib import Path
from threading import Event, Thread

import pytest
from imaging import bytes_of, described, mapped

from gcr.image.chunks.chunk import name_of
from gcr.image.chunks.entry import BLOCK
from gcr.image.crypto.cipher import PLAIN
from gcr.image.pack import writer as packing
from gcr.image.pack.reader import PackReader
from gcr.image.pack.writer import WAITING, WRITERS, PackWriter, _File
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import StoreUnusable
from gcr.testing.machine import PATIENCE, until

pytestmark = pytest.mark.on_disk

SIZE = 2 * BLOCK
BUFFERS = WRITERS + WAITING


def written(writer: PackWriter, number: int) -> None:
    chunk = bytes_of(number, SIZE)
    writer.write(writer.place([(name_of(chunk), SIZE)]), [mapped(chunk)])


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Blocks that a disk does not take, a moment after it was asked to."""
    blocks, real = list[int](), _File.write

    def write(self: _File, at: int, data: memoryview) -> None:
        if at // BLOCK in blocks:
            time.sleep(0.05)
            raise OSError(errno.EIO, "the disk says no")
        real(self, at, data)

    monkeypatch.setattr(_File, "write", write)
    return blocks


@pytest.mark.parametrize("number", [0, 5, 19])
def test_what_the_disk_did_not_take_is_said_before_the_pack_counts(
    tmp_path: Path, failing: list[int], number: int
) -> None:
    failing.append(1 + number * SIZE // BLOCK)
    writer = PackWriter(tmp_path, PLAIN, SIZE)
    with pytest.raises(OSError, match="the disk says no"):
        for each in range(20):
            written(writer, each)
        writer.finish()
    assert [path.suffix for path in tmp_path.iterdir()] == [".new"]
    writer.abandon()
    assert not [*tmp_path.iterdir()]


def test_after_a_failure_nothing_more_is_added_or_written(
    tmp_path: Path, failing: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    added, real = Event(), _File.write

    def patient(self: _File, at: int, data: memoryview) -> None:
        assert added.wait(PATIENCE)
        real(self, at, data)

    monkeypatch.setattr(_File, "write", patient)
    monkeypatch.setattr(packing, "WRITERS", 1)
    failing.append(1)
    writer = PackWriter(tmp_path, PLAIN, SIZE)
    assert writer._behind
    for number in range(1 + WAITING):
        written(writer, number)
    added.set()
    free = writer._behind.free
    until(lambda: writer._failed and free.qsize() == 1 + WAITING, PATIENCE, "it failed, and the others ended")
    for number in range(BUFFERS, 3 * BUFFERS):
        with pytest.raises(OSError, match="the disk says no"):
            written(writer, number)
    assert writer._path.stat().st_size == 0
    assert free.qsize() == 1 + WAITING, "a buffer is lost"
    writer.abandon()


def test_an_image_of_which_a_byte_did_not_reach_the_disk_is_none(tmp_path: Path, failing: list[int]) -> None:
    """Though nothing else was to be written when that became known."""
    failing.append(1)
    store = Store(tmp_path / "store")
    with pytest.raises(StoreUnusable, match="the disk says no"), ImageWriter(store, "warm") as writer:
        writer.add([(mapped(bytes_of(1, SIZE)), ())])
        writer.commit(described("warm", [SIZE]))
    assert store.images.names() == []
    assert not [*store.packs.folder.iterdir()]


def test_its_memory_is_free_when_the_disk_has_not_yet_taken_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, real = Event(), _File.write

    def patient(self: _File, at: int, data: memoryview) -> None:
        assert taken.wait(PATIENCE)
        real(self, at, data)

    monkeypatch.setattr(_File, "write", patient)
    writer, memory = PackWriter(tmp_path, PLAIN, SIZE), mapped(bytes_of(1, SIZE))
    chunk = bytes(memory)
    entries = writer.place([(name_of(chunk), SIZE)])
    writer.write(entries, [memory])
    memory[:] = bytes(SIZE)
    taken.set()
    found = bytearray(SIZE)
    pack = PackReader(tmp_path / f"{writer.finish().id}.pack", PLAIN)
    pack.read(pack.chunks.all(), memoryview(found))
    assert found == chunk


def test_what_is_filled_and_not_written_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going, real, added = Event(), _File.write, list[int]()

    def patient(self: _File, at: int, data: memoryview) -> None:
        assert going.wait(PATIENCE)
        real(self, at, data)

    def add() -> None:
        for number in range(3 * BUFFERS):
            written(writer, number)
            added.append(number)

    monkeypatch.setattr(_File, "write", patient)
    writer, adding = PackWriter(tmp_path, PLAIN, SIZE), Thread(target=add)
    adding.start()
    until(lambda: len(added) == BUFFERS, PATIENCE, "all buffers are filled")
    adding.join(0.3)
    assert len(added) == BUFFERS
    going.set()
    adding.join()
    assert len(PackReader(tmp_path / f"{writer.finish().id}.pack", PLAIN).chunks) == 3 * BUFFERS


@pytest.mark.parametrize("end", ["finish", "abandon"])
def test_its_threads_end_with_it(tmp_path: Path, end: str) -> None:
    before = {*threading.enumerate()}
    writer = PackWriter(tmp_path, PLAIN, SIZE, threads=3)
    written(writer, 0)
    assert len({*threading.enumerate()} - before) == WRITERS + 3
    getattr(writer, end)()
    assert {*threading.enumerate()} <= before


@pytest.mark.parametrize("what", ["threads", "file"])
def test_what_cannot_begin_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    before, started, real = {*threading.enumerate()}, [0], Thread.start

    def some(self: Thread) -> None:
        started[0] += 1
        if started[0] == WRITERS:
            raise RuntimeError("can't start new thread")
        real(self)

    def refused(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    if what == "threads":
        monkeypatch.setattr(Thread, "start", some)
    else:
        monkeypatch.setattr(os, "open", refused)
    with pytest.raises(OSError, match=r"no thread can be started|no room"):
        PackWriter(tmp_path, PLAIN, SIZE)
    monkeypatch.undo()
    assert {*threading.enumerate()} <= before
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("cores", "expected"), [(1, 2), (3, 3), (64, 8)])
def test_no_more_threads_name_chunks_than_there_are_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, expected: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    with ImageWriter(Store(tmp_path / "store"), "warm"):
        names = [thread.name for thread in threading.enumerate()]
    assert sum(name.startswith("gcr-name") for name in names) == expected


def test_an_image_that_cannot_have_its_threads_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them it is."""
    store, real = Store(tmp_path / "store"), Thread.start
    before, most = {*threading.enumerate()}, 2 + 2 + WRITERS
    for number in range(most + 1):
        started = [0]

        def some(self: Thread, number: int = number, started: list[int] = started) -> None:
            started[0] += 1
            if started[0] == number + 1:
                raise RuntimeError("can't start new thread")
            real(self)

        monkeypatch.setattr(Thread, "start", some)
        writer = ImageWriter(store, "warm", threads=2)
        if number < most:
            with pytest.raises(StoreUnusable, match="no thread can be started"):
                writer.__enter__()
        else:
            with writer:
                writer.add([(mapped(bytes_of(1, SIZE)), ())])
                writer.commit(described("warm", [SIZE]))
        monkeypatch.undo()
        assert {*threading.enumerate()} <= before
        assert store.images.names() == (["warm"] if number == most else [])
        assert len([*store.packs.folder.iterdir()]) == (number == most)
