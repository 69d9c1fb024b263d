"""Escrow keeps duplicates: what the giver closes stays, what is dropped is closed, and nothing leaks."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as some

from gcr.daemon.keepers import BothKeepers
from gcr.errors import PeerGone
from gcr.memory.escrow import Escrow, Keeper, NotKept


def file_of(content: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, content)
    return fd


def content_of(fd: int) -> bytes:
    return os.pread(fd, 100, 0)


def give(escrow: Keeper, pid: int, ids: list[int]) -> None:
    fds = [file_of(str(i).encode()) for i in ids]
    escrow.put(pid, ids, fds)
    for fd in fds:
        os.close(fd)


def take_all(escrow: Keeper, pid: int) -> dict[int, bytes]:
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


class Dying(Escrow):
    """A supervisor that is dead."""

    def ids(self, pid: int) -> list[int]:
        raise PeerGone("dead")

    def take(self, pid: int, ids: Sequence[int]) -> list[int]:
        raise PeerGone("dead")


def test_copies_are_made_of_what_is_lacking() -> None:
    before = open_descriptors()
    other, escrow = Escrow(), Escrow()
    give(other, 10, [1, 2, 3])
    give(escrow, 10, [2])
    assert escrow.copy_from(other, 10, batch=1) == 2
    assert escrow.copy_from(other, 10, batch=5) == 0
    other.close()
    assert take_all(escrow, 10) == {1: b"1", 2: b"2", 3: b"3"}
    escrow.close()
    assert open_descriptors() == before


@pytest.mark.parametrize("ids", [[1], None])
def test_what_is_dropped_while_it_is_copied_stays_dropped(ids: list[int] | None) -> None:
    """A program frees its memory meanwhile: a descriptor that stays would keep the device's memory."""
    before = open_descriptors()
    escrow = Escrow()

    class Freed(Escrow):
        def take(self, pid: int, wanted: Sequence[int]) -> list[int]:
            found = Escrow.take(self, pid, wanted)
            escrow.drop(pid, ids)
            return found

    other = Freed()
    give(other, 10, [1, 2])
    assert escrow.copy_from(other, 10, batch=5) == (1 if ids else 0)
    assert escrow.ids(10) == ([2] if ids else [])
    other.close()
    escrow.close()
    assert open_descriptors() == before


def test_both_keepers_are_asked_and_both_let_go() -> None:
    before = open_descriptors()
    supervisor, own = Escrow(), Escrow()
    both = BothKeepers("llm", supervisor, own)
    give(both, 10, [1, 2])
    supervisor.drop(10, [1])
    own.drop(10, [2])
    assert both.ids(10) == [1, 2]
    assert take_all(both, 10) == {1: b"1", 2: b"2"}
    both.drop(10, [1])
    assert (supervisor.ids(10), own.ids(10)) == ([2], [])
    both.drop(10)
    assert open_descriptors() == before


def test_the_daemon_has_what_a_dead_supervisor_had() -> None:
    own = Escrow()
    give(own, 10, [1])
    assert take_all(BothKeepers("llm", Dying(), own), 10) == {1: b"1"}
    own.close()
    with pytest.raises(PeerGone):
        BothKeepers("llm", Dying(), own).ids(10)


class Full(Escrow):
    """It has no descriptor left for more."""

    def put(self, pid: int, ids: Sequence[int], fds: Sequence[int]) -> None:
        raise OSError(errno.EMFILE, "no descriptor left")


def test_a_keeper_that_cannot_take_a_successor_lets_go_of_what_it_had() -> None:
    """Memory that came back has its id from before: an old descriptor would lead to the old bytes."""
    supervisor, own, fd = Escrow(), Full(), file_of(b"new")
    give(supervisor, 10, [1, 2])
    own.copy_from(supervisor, 10, 2)
    both = BothKeepers("llm", supervisor, own)
    both.put(10, [1], [fd])
    os.close(fd)
    assert (own.ids(10), take_all(both, 10)) == ([2], {1: b"new", 2: b"2"})
    own.close()
    supervisor.close()


def test_a_keeper_that_was_away_has_what_the_other_has() -> None:
    """In the place of other memory under the same id. What only it has may be all there is of that."""
    own, away = Escrow(), Escrow()
    fresh = file_of(b"fresh")
    own.put(10, [1, 2], [fresh, fresh])
    os.close(fresh)
    give(away, 10, [2, 3])
    own.copy_to(away, 10, 1, only=False)
    assert take_all(away, 10) == {1: b"fresh", 2: b"fresh", 3: b"3"}
    own.copy_to(away, 10, 1, only=True)
    assert take_all(away, 10) == {1: b"fresh", 2: b"fresh"}
    before = open_descriptors()
    own.drop(10)
    own.copy_to(away, 10, 1, only=True)
    assert take_all(away, 10) == {}
    assert open_descriptors() == before - 4


class Changing(Escrow):
    """`meanwhile` happens while it is being given something, for the first time."""

    meanwhile: Callable[[], object] | None = None

    def put(self, pid: int, ids: Sequence[int], fds: Sequence[int]) -> None:
        happens, self.meanwhile = self.meanwhile, None
        if happens:
            happens()
        super().put(pid, ids, fds)


@pytest.mark.parametrize("change", ["drop", "put"])
def test_what_changes_while_it_is_handed_on_is_right_with_both(change: str) -> None:
    own, away = Escrow(), Changing()
    both, old = BothKeepers("llm", away, own), file_of(b"old")
    own.put(10, [1], [old])
    os.close(old)
    changed = Thread(target=lambda: own.drop(10, [1]) if change == "drop" else give(both, 10, [1, 2]))

    def meanwhile() -> None:
        changed.start()
        changed.join(0.2)

    away.meanwhile = meanwhile
    own.copy_to(away, 10, 8, only=False)
    changed.join(10)
    expected = {} if change == "drop" else {1: b"1", 2: b"2"}
    assert take_all(own, 10) == take_all(away, 10) == expected
    own.close()
    away.close()
