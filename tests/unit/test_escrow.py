"""Escrow keeps duplicates: what the giver closes stays, what is dropped is closed, and nothing leaks."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from gcr.supervisor.escrow import Escrow, NotKept


def file_of(content: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, content)
    return fd


def content_of(fd: int) -> bytes:
    return os.pread(fd, 100, 0)


def give(escrow: Escrow, pid: int, ids: list[int]) -> None:
    fds = [file_of(str(i).encode()) for i in ids]
    escrow.put(pid, ids, fds)
    for fd in fds:
        os.close(fd)


def take_all(escrow: Escrow, pid: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    ids = escrow.ids(pid)
    for i, fd in zip(ids, escrow.take(pid, ids), strict=True):
        found[i] = content_of(fd)
        os.close(fd)
    return found


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_what_was_put_outlives_the_giver() -> None:
    escrow = Escrow()
    give(escrow, 10, [5, 3])
    assert take_all(escrow, 10) == {3: b"3", 5: b"5"}
    escrow.close()


def test_processes_are_kept_apart() -> None:
    escrow = Escrow()
    give(escrow, 10, [1])
    give(escrow, 11, [1, 3])
    escrow.drop(10)
    assert take_all(escrow, 10) == {}
    assert take_all(escrow, 11) == {1: b"1", 3: b"3"}
    escrow.close()


def test_what_is_not_kept_cannot_be_taken() -> None:
    escrow = Escrow()
    give(escrow, 10, [1])
    before = open_descriptors()
    with pytest.raises(NotKept):
        escrow.take(10, [1, 2])
    assert open_descriptors() == before
    escrow.close()


def test_staging_from_the_start_replaces_what_was_staged() -> None:
    escrow = Escrow()
    first, second = file_of(b"first"), file_of(b"second")
    escrow.stage(10, [first, first], 0)
    escrow.stage(10, [second], 0)
    staged = escrow.unstage(10, 0, 10)
    assert [content_of(fd) for fd in staged] == [b"second"]
    for fd in [first, second, *staged]:
        os.close(fd)
    escrow.close()


@given(some.lists(some.tuples(some.sampled_from(["put", "drop", "forget"]), some.integers(1, 6)), max_size=30))
def test_nothing_leaks_and_nothing_is_closed_twice(steps: list[tuple[str, int]]) -> None:
    before = open_descriptors()
    escrow = Escrow()
    model: dict[int, bytes] = {}
    for step, number in steps:
        if step == "put":
            give(escrow, 10, [number])
            model[number] = str(number).encode()
        elif step == "drop":
            escrow.drop(10, [number])
            model.pop(number, None)
        else:
            escrow.forget(10)
            model.clear()
        assert escrow.held() == len(model)
    assert take_all(escrow, 10) == model
    escrow.close()
    assert open_descriptors() == before
