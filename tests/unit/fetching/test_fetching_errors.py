"""Chunks that cannot be brought: the first error is told, and nothing goes to the target any more."""

import errno
import gc
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fetched import BUFFERS, COUNT, SIZE, damage, expected, groups_of, packed

from gcr.image.chunks.index import Run
from gcr.image.pack.reader import OpenPack, PackReader
from gcr.image.read.fetching import READERS, Fetcher, Group
from gcr.imageerrors import Damaged
from gcr.testing.machine import until

pytestmark = pytest.mark.on_disk


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
        until(lambda: resizable(memory), 20, "no view of the memory is left")
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
