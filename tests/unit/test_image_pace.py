"""What keeps a disk busy: room ahead of what is written."""

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from imaging import bytes_of, write
from test_image import check, read

from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image import pack
from gcr.image.pack import PackReader, PackWriter
from gcr.image.reader import TOGETHER
from gcr.image.room import allocate
from gcr.image.store import Store

GROUP = TOGETHER * CHUNK_BYTES


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def room_from_the_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "ROOM_FROM", 0)


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
    (path,) = store.packs.iterdir()
    assert path.stat().st_size == PackReader(path, store.cipher).pack.bytes < sum(map(len, data)) + 10 * pack.BLOCK
    check(store, "warm")
    assert read(store, "warm") == data


def test_a_small_pack_asks_for_no_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "allocate", lambda *_: pytest.fail("it did"))
    write(store, "warm", [bytes_of(1, GROUP)])


@pytest.mark.usefixtures("room_from_the_first_byte")
def test_what_is_asked_for_is_twice_what_there_is_and_never_much(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(pack, "allocate", lambda _fd, at, size: asked.append((at, size)))
    monkeypatch.setattr(pack, "ROOM_MOST", 3 * GROUP)
    writer = PackWriter(store.packs, store.cipher)
    for _ in range(16):
        writer.place([(bytes(32), CHUNK_BYTES)] * TOGETHER)
    writer.abandon()
    ends = [at + size for at, size in asked]
    assert [at for at, _ in asked] == [0, *ends[:-1]]
    assert ends[0] == 2 * (GROUP + pack.BLOCK)
    assert all(size <= 4 * GROUP + pack.BLOCK for _, size in asked[1:])
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

    monkeypatch.setattr(pack, "allocate", some)
    monkeypatch.setattr(pack, "ROOM_MOST", pack.BLOCK)
    data = [bytes_of(1, 5 * GROUP)]
    write(store, "warm", data)
    assert asked[0] == number + 1, "it went on asking, or never did"
    check(store, "warm")
    assert read(store, "warm") == data
