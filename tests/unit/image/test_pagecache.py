"""Packs are read from the page cache where it has their bytes, and else past it."""

import os
from pathlib import Path

import pytest

from gcr.image.disk import pagecache
from gcr.image.disk.pagecache import is_cached
from gcr.image.pack.reader import OpenPack

pytestmark = pytest.mark.on_disk

SIZE = 16 << 20  # several of the largest pieces that a page cache keeps or drops as one
PAGE = 4096
NO_DESCRIPTOR = 1 << 20


@pytest.fixture
def pack(tmp_path: Path) -> OpenPack:
    """Yields a file that no read past the page cache is possible of."""
    path = tmp_path / "pack"
    path.write_bytes(os.urandom(SIZE))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    return OpenPack(path, fd, NO_DESCRIPTOR)


def drop(fd: int, at: int = 0, size: int = 0) -> None:
    os.posix_fadvise(fd, at, size, os.POSIX_FADV_DONTNEED)


def test_the_kernel_tells_what_is_cached(pack: OpenPack) -> None:
    os.pread(pack.fd, SIZE, 0)
    if not is_cached(pack.fd, 0, SIZE):
        pytest.skip("the kernel does not tell what the page cache has")
    drop(pack.fd, SIZE // 2)
    assert is_cached(pack.fd, 0, SIZE // 2) and not is_cached(pack.fd, 0, SIZE)
    for _ in range(2):  # the question brings nothing there
        assert not is_cached(pack.fd, SIZE - PAGE, PAGE)


def test_bytes_of_the_page_cache_are_taken_from_there(pack: OpenPack) -> None:
    text = os.pread(pack.fd, SIZE, 0)
    if not is_cached(pack.fd, 0, SIZE):
        pytest.skip("the kernel does not tell what the page cache has")
    found = bytearray(SIZE)
    pack.blocks(0, memoryview(found))
    assert found == text
    drop(pack.fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        pack.blocks(0, memoryview(found))


def test_a_kernel_that_does_not_tell_is_asked_for_nothing_else(pack: OpenPack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagecache, "_CACHESTAT", 1 << 20)  # no such call
    os.pread(pack.fd, SIZE, 0)
    assert not is_cached(pack.fd, 0, SIZE)
