"""A pack in memory is written from where its chunks lie, and takes no more of that memory than it has bytes."""

import errno
import os
from pathlib import Path

import pytest
from imaging import bytes_of, mapped

from gcr.image.chunks.chunk import name_of
from gcr.image.chunks.entry import BLOCK
from gcr.image.crypto.cipher import PLAIN
from gcr.image.disk.room import is_memory
from gcr.image.pack import writer as packing
from gcr.image.pack.reader import PackReader
from gcr.image.pack.writer import PackWriter, _File

MIB = 1 << 20
SIZES = (2 * BLOCK, 2 * BLOCK, 5000, 100, BLOCK, BLOCK)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packing, "is_memory", lambda _fd: True)  # on a machine with a small /dev/shm it is on a disk
    return tmp_path


@pytest.mark.parametrize(("path", "expected"), [("/dev/shm", True), ("/proc", False)])
def test_memory_is_told_from_other_file_systems(path: str, expected: bool) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        assert is_memory(fd) is expected
    finally:
        os.close(fd)


def side_by_side(sizes: tuple[int, ...]) -> tuple[bytes, list[memoryview]]:
    """Returns bytes, and chunks of these sizes that lie one behind the other."""
    data = bytes_of(3, sum(sizes))
    memory, chunks, at = mapped(data), list[memoryview](), 0
    for size in sizes:
        chunks.append(memory[at : at + size])
        at += size
    return data, chunks


@pytest.mark.parametrize("lying", ["side by side", "apart", "read-only"])
def test_every_chunk_is_there_at_its_block_with_zeros_behind_it(folder: Path, lying: str) -> None:
    data, chunks = side_by_side(SIZES)
    if lying != "side by side":
        chunks = [mapped(bytes(chunk)) if lying == "apart" else memoryview(bytes(chunk)) for chunk in chunks]
    writer = PackWriter(folder, PLAIN, 16 * BLOCK)
    writer.write(writer.place([(name_of(chunk), len(chunk)) for chunk in chunks]), chunks)
    pack = PackReader(folder / f"{writer.finish().id}.pack", PLAIN)
    found = memoryview(bytearray(len(data)))
    pack.read(pack.chunks.all(), found)
    assert found == data
    assert sum(pack.check()) > len(data)  # compares also what is behind each chunk


def test_chunks_that_lie_side_by_side_are_one_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, real = list[int](), _File.write

    def write(self: _File, at: int, data: memoryview) -> None:
        sizes.append(len(data))
        real(self, at, data)

    monkeypatch.setattr(_File, "write", write)
    _, chunks = side_by_side(SIZES)
    writer = PackWriter(folder, PLAIN, 16 * BLOCK)
    writer.write(writer.place([(name_of(chunk), len(chunk)) for chunk in chunks]), chunks)
    assert sizes == [4 * BLOCK + 5000, 100, 2 * BLOCK]
    writer.abandon()


def test_no_memory_is_reserved_ahead(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "ROOM_FROM", MIB)
    writer, chunk = PackWriter(folder, PLAIN, MIB), mapped(bytes_of(1, MIB))
    for _ in range(4):
        writer.write(writer.place([(name_of(chunk), MIB)]), [chunk])
    assert writer._path.stat().st_blocks * 512 <= 4 * MIB + BLOCK
    writer.abandon()


def test_a_full_memory_is_said_at_once_and_from_then_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "the memory is full")

    writer, chunk = PackWriter(folder, PLAIN, MIB), mapped(bytes_of(1, MIB))
    monkeypatch.setattr(os, "pwritev", full)
    for _ in range(2):
        with pytest.raises(OSError, match="the memory is full"):
            writer.write(writer.place([(name_of(chunk), MIB)]), [chunk])
    monkeypatch.undo()
    with pytest.raises(OSError, match="the memory is full"):
        writer.finish()
    writer.abandon()
