"""Parts of the exchange by themselves: spans, notes of a pull, turns, and what is known of a giver."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.image.exchange import turns
from gcr.image.exchange.bringing import Hands
from gcr.image.exchange.coming import piece_bytes
from gcr.image.exchange.known import Known, Piece, Pieces
from gcr.image.exchange.notes import Noted, Notes
from gcr.image.exchange.offer import _MOST_GIVEN, _Given
from gcr.image.exchange.spans import Spans
from gcr.image.exchange.turns import Turns
from gcr.image.exchange.wire import Told, ToldPack
from gcr.image.pack.format import Pack
from gcr.image.remote.transfer import Transfer
from gcr.imageerrors import Damaged
from gcr.testing.machine import until

SEAL = bytes(range(32))
PACK = Pack("0" * 32, SEAL, 1 << 20)
LONG_S = 20.0


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=12), st.integers(0, 30), st.integers(1, 9))
def test_spans_cover_what_was_added(runs: list[tuple[int, int]], at: int, size: int) -> None:
    spans, known = Spans(), set[int]()
    for begin, length in runs:
        low, high = spans.add(begin, begin + length)
        known |= {*range(begin, begin + length)}
        assert {*range(low, high)} <= known and low - 1 not in known and high not in known
    assert spans.covers(at, at + size) == ({*range(at, at + size)} <= known)


def test_notes_of_a_pull_at_work_count(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    notes = Notes(path, SEAL)
    noted = Noted(path)
    assert (noted.seal, noted.are_kept(), noted.runs(0, 9)) == (SEAL, True, [])
    notes.add(4096, 100)
    notes.add(0, 4096)
    assert noted.runs(0, 9) == [(4096, 100), (0, 4096)] and noted.runs(1, 9) == [(0, 4096)]
    assert noted.cover(10, 4100) and not noted.cover(10, 4190)
    notes.add(4196, 10)
    assert noted.cover(10, 4190)
    notes.close()
    assert not noted.are_kept() and not path.exists()
    noted.close()


def test_notes_of_a_pull_that_died_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    code = "import os, sys; from pathlib import Path; from gcr.image.exchange.notes import Notes\n"
    code += "notes = Notes(Path(sys.argv[1]), bytes(32)); notes.add(0, 9); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, path], check=False, timeout=60)
    dead = Noted(path)
    assert dead.runs(0, 9) == [(0, 9)] and not dead.are_kept()
    notes = Notes(path, SEAL)
    alive = Noted(path)
    assert alive.are_kept() and not dead.are_kept() and alive.life != dead.life
    notes.close()
    alive.close()
    dead.close()


def test_notes_without_a_whole_head_are_none(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(bytes(40))
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(Damaged):
        Noted(path)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_runs_that_were_given_are_told_once() -> None:
    given = _Given()
    for number in range(3):
        given.add((number, 1))
    assert given.since(0) == ([(0, 1), (1, 1), (2, 1)], 3)
    assert given.since(2) == ([(2, 1)], 3)
    assert given.since(9) == ([(0, 1), (1, 1), (2, 1)], 3)  # of a former exchange
    for number in range(3, 2 * _MOST_GIVEN):
        given.add((number, 1))
    runs, end = given.since(2 * _MOST_GIVEN - 5)
    assert (len(runs), end) == (5, 2 * _MOST_GIVEN) and len(given.runs) <= _MOST_GIVEN


def pieces(*places: tuple[int, int]) -> Pieces:
    return Pieces([Piece(PACK, at, size, lambda data: None) for at, size in places])


def told(**facts: object) -> Told:
    return Told({PACK.id: ToldPack(**facts)})  # type: ignore[arg-type]


def test_a_piece_is_known_once_all_of_it_was_told() -> None:
    known = Known(pieces((0, 10), (10, 10), (20, 5)))
    assert [*known.learned(told(life="a", runs=[(8, 4)])).has] == []
    news = known.learned(told(life="a", runs=[(0, 8), (12, 100)]))
    assert sorted(news.has) == [0, 1, 2] and news.growing
    look = known.look().packs[PACK.id]
    assert (look.life, look.runs, look.whole, look.seal) == ("a", 3, False, SEAL.hex())
    assert [*known.learned(told(life="b", runs=[(8, 4)])).has] == []
    assert [*known.learned(told(whole=True)).has] == [0, 1, 2]
    assert [*known.learned(told(whole=True)).has] == [] and known.look().packs[PACK.id].whole


def test_what_a_giver_tells_of_other_packs_or_places_is_passed_over() -> None:
    known = Known(pieces((0, 10)))
    assert [*known.learned(Told({"1" * 32: ToldPack(whole=True)})).has] == []
    assert [*known.learned(told(life="a", runs=[(-5, 100), (0, -10), (5, 0), (50, 10)])).has] == []
    assert [*known.learned(told(given=[(3, 1), (90, 1), (-9, 4)], given_at=3)).given] == [0]


def taking(line: Turns, name: str, done: list[str], may_end: threading.Event | None = None) -> threading.Thread:
    """Starts a thread that takes a turn, which may end; it is noted then."""

    def take() -> None:
        with line.turn():
            assert not may_end or may_end.wait(LONG_S)
            done.append(name)

    thread = threading.Thread(target=take)
    thread.start()
    return thread


def test_turns_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "AT_ONCE", 1)
    monkeypatch.setattr(turns, "TURN_S", LONG_S)
    line, done, may_end, threads = Turns(), list[str](), threading.Event(), list[threading.Thread]()
    for name in ("first", "second", "third"):
        threads.append(taking(line, name, done, may_end))
        until(lambda: len(line._begun) + len(line._line) == len(threads), LONG_S, "it is in the line")
    may_end.set()
    for thread in threads:
        thread.join(LONG_S)
    assert done == ["first", "second", "third"]


def test_a_long_turn_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "AT_ONCE", 1)
    monkeypatch.setattr(turns, "TURN_S", 0.05)
    line, done, may_end = Turns(), list[str](), threading.Event()
    long = taking(line, "long", done, may_end)
    until(lambda: line._begun, LONG_S, "it has its turn")
    taking(line, "short", done).join(LONG_S)
    assert done == ["short"]
    may_end.set()
    long.join(LONG_S)


def test_one_giver_sends_larger_pieces_than_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gcr.image.exchange.coming.LEAST_PIECE", 1 << 20)
    sizes = [tuple(piece_bytes(mib << 20, n) >> 20 for n in (1, 2)) for mib in (1, 256, 1024, 8192)]
    assert sizes == [(1, 1), (4, 1), (8, 2), (8, 8)]


def test_a_piece_of_each_of_many_givers_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gcr.image.exchange.coming.LEAST_PIECE", 1 << 20)
    assert [piece_bytes(1 << 40, givers) >> 20 for givers in (0, 32, 64, 1000)] == [8, 8, 4, 1]


def test_a_pull_tells_of_its_progress_now_and_then_and_not_for_each_piece() -> None:
    told = list[object]()
    hands = Hands(Transfer("pull", tell=told.append, total=10))
    for _ in range(1000):
        hands.check()
    assert 1 <= len(told) < 100
    hands.close()
