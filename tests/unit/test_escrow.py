"""Escrow keeps duplicates: what the giver closes stays, what is dropped is closed, and nothing leaks."""

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

import pytest
from channels import open_descriptors
from hypothesis import given
from hypothesis import strategies as some

from gcr.daemon.keepers import BothKeepers, SoleKeeper
from gcr.daemon.missed import Missed
from gcr.engine.duplicates import staged_with
from gcr.errors import DeadlinePassed, NotRead, PeerGone, RolledBack
from gcr.memory.escrow import Escrow, Keeper, NotKept
from gcr.memory.layout import SealedTable


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
    """It replaces other memory under the same id. A copy that only it has may be the only one."""
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


def test_what_was_staged_of_an_earlier_suspension_is_not_taken() -> None:
    before = open_descriptors()
    escrow = Escrow()
    table = SealedTable("llm", 10, 8, 9, {0: "GPU-1"}, (), (), ()).to_memfd()
    escrow.stage(10, [table], 0)
    os.close(table)
    assert staged_with(escrow, 10, 10) == []
    (found,) = staged_with(escrow, 10, 9)
    assert SealedTable.from_fd(found).transaction == 9
    os.close(found)
    escrow.close()
    assert open_descriptors() == before


class Away(Escrow):
    """A supervisor to which `error` happens at each call, while there is one."""

    error: Exception | None = None

    def put(self, pid: int, ids: Sequence[int], fds: Sequence[int]) -> None:
        self._happens()
        super().put(pid, ids, fds)

    def drop(self, pid: int, ids: Sequence[int] | None = None) -> None:
        self._happens()
        super().drop(pid, ids)

    def _happens(self) -> None:
        if self.error:
            raise self.error


def changed(keeper: Keeper, how: str) -> None:
    if how == "put":
        give(keeper, 10, [1])
    else:
        keeper.drop(10, None if how == "drop" else [1])


@pytest.mark.parametrize("how", ["put", "drop", "drop one"])
def test_the_next_daemon_takes_nothing_that_changed_while_the_supervisor_was_away(tmp_path: Path, how: str) -> None:
    away = Escrow()
    give(away, 10, [1, 2])
    changed(SoleKeeper("llm", Escrow(), Missed(tmp_path)), how)
    both = BothKeepers("llm", away, Escrow(), Missed(tmp_path))
    assert both.ids(10) == away.ids(10) == ([] if how == "drop" else [2])
    assert not [*(tmp_path / "missed").iterdir()]


@pytest.mark.parametrize("error", [PeerGone("gone"), NotRead("full"), RolledBack("no descriptor")], ids=repr)
@pytest.mark.parametrize("how", ["put", "drop one"])
def test_what_does_not_reach_a_supervisor_is_written_down(tmp_path: Path, error: Exception, how: str) -> None:
    away = Away()
    give(away, 10, [1, 2])
    away.error = error
    with pytest.raises(type(error)):
        changed(BothKeepers("llm", away, Escrow(), Missed(tmp_path)), how)
    away.error = None
    assert BothKeepers("llm", away, Escrow(), Missed(tmp_path)).ids(10) == [2]


def test_what_a_stopped_supervisor_was_sent_is_no_miss(tmp_path: Path) -> None:
    """It reads that as soon as it goes on, before it goes to another daemon."""
    away = Away()
    away.error = DeadlinePassed("stopped")
    with pytest.raises(DeadlinePassed):
        give(BothKeepers("llm", away, Escrow(), Missed(tmp_path)), 10, [1])
    assert not (tmp_path / "missed").exists()


def test_memory_is_not_kept_by_the_daemon_alone_where_that_cannot_be_written_down(tmp_path: Path) -> None:
    own = Escrow()
    (tmp_path / "missed").mkdir(mode=0o700)
    (tmp_path / "missed" / "10").mkdir()
    missed = Missed()
    missed._directory = tmp_path / "missed"
    keeper = SoleKeeper("llm", own, missed)
    with pytest.raises(RolledBack, match="cannot write down"):
        give(keeper, 10, [1])
    assert own.ids(10) == []


@pytest.mark.parametrize("text", ["1\n2", "1\n\x00\n", ""])
def test_a_record_that_was_cut_short_is_of_all_memory(tmp_path: Path, text: str) -> None:
    (tmp_path / "missed").mkdir(mode=0o700)
    (tmp_path / "missed" / "10").write_text(text)
    away = Escrow()
    give(away, 10, [1, 2, 3])
    assert BothKeepers("llm", away, Escrow(), Missed(tmp_path)).ids(10) == []


def test_a_record_that_another_removes_is_written_again(tmp_path: Path) -> None:
    missed = Missed(tmp_path)
    give(SoleKeeper("llm", Escrow(), missed), 10, [1])
    shutil.rmtree(tmp_path / "missed")
    missed.mend()
    away = Escrow()
    give(away, 10, [1, 2])
    assert BothKeepers("llm", away, Escrow(), Missed(tmp_path)).ids(10) == [2]
