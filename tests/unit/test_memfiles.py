"""The pages of an arena's files: all exist, huge ones where the kernel makes these; a lack of memory is an error."""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gcr.memory import hostmap, memfiles
from gcr.memory.addresses import HUGE_PAGE, round_up
from gcr.memory.memfiles import HUGE_AT_ONCE, fill_huge, makes_huge_pages, promised_memfd

SIZE = 2 * HUGE_AT_ONCE + HUGE_PAGE


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests keep this machine busy, so that it may seem slow at making pages."""
    monkeypatch.setattr(memfiles, "SLOWEST_S", 60.0)


@pytest.fixture
def mapped() -> Iterator[tuple[int, int]]:
    """Yields the descriptor and the address of an empty file of SIZE bytes."""
    fd, reserved = promised_memfd(SIZE), hostmap.reserve(SIZE + HUGE_PAGE)
    hostmap.map_shared(round_up(reserved), SIZE, fd)
    yield fd, round_up(reserved)
    hostmap.unreserve(reserved, SIZE + HUGE_PAGE)
    os.close(fd)


def huge_bytes(address: int) -> int:
    """Returns how much of the mapping at an address the page tables have in huge pages, by /proc."""
    _, found, rest = Path("/proc/self/smaps").read_text().partition(f"{address:x}-")
    assert found
    fields = dict(line.split(":", 1) for line in rest.split("VmFlags", 1)[0].splitlines()[1:])
    return sum(int(fields[name].split()[0]) << 10 for name in ("ShmemPmdMapped", "FilePmdMapped"))


def exists(fd: int) -> bool:
    return os.fstat(fd).st_blocks * 512 == SIZE


def test_the_kernel_makes_huge_pages_where_it_can(mapped: tuple[int, int]) -> None:
    if not makes_huge_pages():
        pytest.skip(
            "this kernel makes no huge pages of memory files now: it is older than 6.1, or its memory is in pieces"
        )
    fd, address = mapped
    fill_huge(fd, SIZE, address)
    assert exists(fd)
    assert huge_bytes(address) > 0


@pytest.mark.parametrize(
    ("refused", "asked"),
    [(errno.EINVAL, 1), (errno.ENOMEM, 1), (errno.EAGAIN, 3)],
    ids=["unknown", "none left", "in use"],
)
def test_small_pages_take_the_place_of_huge_ones(
    mapped: tuple[int, int], monkeypatch: pytest.MonkeyPatch, refused: int, asked: int
) -> None:
    calls = list[tuple[int, int]]()
    monkeypatch.setattr(hostmap, "collapse", lambda *at: calls.append(at) or refused)
    fd, address = mapped
    fill_huge(fd, SIZE, address)
    assert exists(fd)
    assert (len(calls), huge_bytes(address)) == (asked, 0)


def test_a_kernel_that_is_slow_at_it_is_asked_once(mapped: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[tuple[int, int]]()
    monkeypatch.setattr(memfiles, "SLOWEST_S", 0.0)
    monkeypatch.setattr(hostmap, "collapse", lambda *at: calls.append(at) or 0)
    fd, address = mapped
    fill_huge(fd, SIZE, address)
    assert exists(fd)
    assert calls == [(address, HUGE_AT_ONCE)]


def failing_from(call: Callable[..., None], count: int) -> Callable[..., None]:
    """Returns the call, which lacks memory from the call of that number on."""
    left = [count]

    def made(fd: int, at: int, size: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOMEM, "no memory")
        call(fd, at, size)

    return made


@pytest.mark.parametrize("count", [0, 3, 12])
def test_a_lack_of_memory_is_an_error_and_no_signal(
    mapped: tuple[int, int], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(hostmap, "collapse", lambda *_at: 0)
    monkeypatch.setattr(os, "posix_fallocate", failing_from(os.posix_fallocate, count))
    with pytest.raises(OSError, match="no memory"):
        fill_huge(mapped[0], SIZE, mapped[1])


def test_bytes_that_are_there_stay(mapped: tuple[int, int]) -> None:
    """A segment is filled once; if a second process filled it as well, nothing of it may change."""
    fd, address = mapped
    os.pwrite(fd, b"kept" * 3, HUGE_PAGE - 6)
    fill_huge(fd, SIZE, address)
    assert os.pread(fd, 12, HUGE_PAGE - 6) == b"kept" * 3
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    assert set(os.pread(fd, mmap.PAGESIZE, SIZE - mmap.PAGESIZE)) == {0}
