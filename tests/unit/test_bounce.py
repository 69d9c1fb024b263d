"""Memory between a disk and where bytes go, and how they get there."""

import ctypes
import errno
import mmap
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.image.disk.bounce import Bounce, move_each
from gcr.memory.addresses import HUGE_PAGE

pieces = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=12)


def address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@pytest.mark.parametrize("size", [1, mmap.PAGESIZE, HUGE_PAGE, HUGE_PAGE + 1])
def test_a_buffer_begins_where_a_huge_page_does(size: int) -> None:
    buffer = Bounce().buffer(size)
    assert len(buffer) == size
    assert address(buffer) % HUGE_PAGE == 0
    buffer[-1] = 1


def test_the_same_memory_serves_again_and_a_larger_one_from_then_on() -> None:
    bounce = Bounce()
    small = bounce.buffer(1000)
    assert address(bounce.buffer(10)) == address(small)
    large = bounce.buffer(2 * HUGE_PAGE)
    assert address(bounce.buffer(1000)) == address(large)
    small[:] = bytes(1000)  # an earlier holder may still look at it


def test_each_thread_has_its_own() -> None:
    bounce, found = Bounce(), list[int]()
    mine = bounce.buffer(1000)
    thread = Thread(target=lambda: found.append(address(bounce.buffer(1000))))
    thread.start()
    thread.join()
    assert found != [address(mine)]


def test_a_kernel_without_huge_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without(mmap.mmap):
        def madvise(self, *_arguments: int) -> None:
            raise OSError(errno.EINVAL, "no such advice")

    monkeypatch.setattr(mmap, "mmap", Without)
    buffer = Bounce().buffer(5000)
    buffer[:] = bytes(range(250)) * 20
    assert buffer == bytes(range(250)) * 20


@given(pieces)
def test_every_byte_moves_and_no_other(parts: list[tuple[int, int, int, bool]]) -> None:
    """Moves pieces of any size, with gaps between targets, sources, or neither; some sources are read-only."""
    source, target = bytearray(range(1, 251)) * 3, bytearray(700)
    expected, sources, targets, here, there = bytearray(700), [], [], 0, 0
    for size, gap, other, fixed in parts:
        here, there = here + gap, there + other
        piece = memoryview(source)[here : here + size]
        sources.append(memoryview(bytes(piece)) if fixed else piece)
        targets.append(memoryview(target)[there : there + size])
        expected[there : there + size] = piece
        here, there = here + size, there + size
    move_each(targets, sources)
    assert target == expected


def test_what_follows_one_another_moves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = list[int](), ctypes.memmove
    monkeypatch.setattr(ctypes, "memmove", lambda to, of, size: calls.append(size) or real(to, of, size))
    source, target = memoryview(bytearray(range(100))), memoryview(bytearray(100))
    cuts = [(0, 30), (30, 50), (60, 100)]
    move_each([target[a:b] for a, b in cuts], [source[a:b] for a, b in cuts])
    assert [size for size in calls if size] == [50, 40]
    assert target == bytes(range(50)) + bytes(10) + bytes(range(60, 100))


@pytest.mark.parametrize(("to", "of"), [(3, 4), (4, 3)])
def test_a_target_of_another_size_is_refused(to: int, of: int) -> None:
    before = bytearray(b"before" * 2)
    with pytest.raises(ValueError, match=f"{of} bytes do not fit into {to}"):
        move_each([memoryview(before)[:to]], [memoryview(bytearray(of))])
    assert before == b"before" * 2
