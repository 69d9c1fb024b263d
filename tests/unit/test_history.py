"""Events in the daemon's memory: numbered, bounded, for each user its own; a slow reader is told what it missed."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from channels import eventually

from gcr.api.jobevents import EventBatch, EventsMissed, JobReleased, ProcessEnded, SaveDone
from gcr.api.requests import EventsRequest
from gcr.daemon import history as module
from gcr.daemon.history import History
from gcr.daemon.permission import OURSELVES, Caller
from gcr.errors import UsageError

NEVER = threading.Event()
OTHER = Caller(uid=os.getuid() + 1)
SAVED = SaveDone(job="llm", pid=7, bytes=1, aside_s=0.1, safe_s=0.1, took_s=0.1)


def note(history: History, *jobs: str, owner: int = OURSELVES.uid) -> None:
    for job in jobs:
        history.note(owner, JobReleased(job=job))


def asked(history: History, caller: Caller = OURSELVES, **request: object) -> EventBatch:
    return history.asked(EventsRequest.from_json(request), caller, NEVER)


def jobs(batch: EventBatch) -> list[tuple[int, str]]:
    return [(event.seq, event.job) for event in batch.events if isinstance(event, JobReleased)]


def test_events_are_numbered_from_the_start_of_the_daemon_and_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    history = History()
    note(history, "a", "b", "c")
    first = asked(history)
    assert (first.events[0].seq, first.events[0].to_json()["pid"]) == (1, os.getpid())
    assert (jobs(first), first.last) == ([(2, "a")], 2)
    second = asked(history, after=first.last, daemon=first.daemon)
    assert (jobs(second), second.last) == ([(3, "b"), (4, "c")], 4)
    assert asked(history, after=4, daemon=first.daemon).events == ()
    assert asked(history, after=None).last == 4


def test_a_slow_reader_is_told_how_many_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    history = History()
    note(history, "a", "b", "c", "d", "e")
    missed, *rest = asked(history, after=1).events
    assert (missed.seq, missed.to_json()["count"]) == (3, 2)
    assert isinstance(missed, EventsMissed)
    assert [event.seq for event in rest] == [4, 5, 6]
    assert not any(isinstance(event, EventsMissed) for event in asked(history, after=3).events)


def test_saves_drive_out_saves_alone_and_readers_are_told_where_some_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A training may save at each step."""
    monkeypatch.setattr(module, "SAVES", 2)
    history = History()
    for job in ("a", "b"):
        note(history, job)
        for _ in range(50):
            history.note(OURSELVES.uid, SAVED)
    said = [(event.seq, getattr(event, "count", getattr(event, "job", ""))) for event in asked(history).events]
    assert said == [(1, ""), (2, "a"), (52, 50), (53, "b"), (101, 48), (102, "llm"), (103, "llm")]
    assert [event.seq for event in asked(history, after=101).events] == [102, 103]
    assert [event.seq for event in asked(history, after=99).events] == [101, 102, 103]
    note(history, "c")
    assert [event.seq for event in asked(history, after=103).events] == [104]


def test_events_beside_saves_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    history = History()
    for job in ("a", "b"):
        note(history, job)
        history.note(OURSELVES.uid, SAVED)
    seen, after = list[int](), 0
    while batch := asked(history, after=after).events:
        assert len(batch) <= 2
        seen += [event.seq for event in batch]
        after = seen[-1]
    assert seen == [1, 2, 3, 4, 5]


def test_numbers_of_another_daemon_count_for_nothing() -> None:
    history = History()
    note(history, "a")
    assert jobs(asked(history, after=2, daemon="another")) == [(2, "a")]
    assert jobs(asked(history, after=77)) == [(2, "a")]
    assert asked(history, after=2, daemon=asked(history).daemon).events == ()


def test_another_user_sees_its_own_events_alone_with_numbers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    history = History()
    note(history, "theirs", owner=OTHER.uid)
    note(history, "a", "b", "c", "d")
    note(history, "also-theirs", owner=OTHER.uid)
    found = asked(history, OTHER)
    assert [event.seq for event in found.events] == [1, 2, 3]
    assert jobs(found) == [(2, "theirs"), (3, "also-theirs")]
    assert jobs(asked(history, after=4)) == [(5, "c"), (6, "d"), (7, "also-theirs")]


@contextmanager
def waiting() -> Iterator[tuple[History, threading.Event, list[EventBatch], threading.Thread]]:
    """Yields a follower that waits for the next event, a sign that it has left, and its answers."""
    history, gone, found = History(), threading.Event(), list[EventBatch]()
    request = EventsRequest(after=None, wait_s=60.0)
    thread = threading.Thread(target=lambda: found.append(history.asked(request, OURSELVES, gone)))
    thread.start()
    assert eventually(lambda: bool(history._changed._waiters), 10.0)  # type: ignore[attr-defined]
    yield history, gone, found, thread
    gone.set()
    thread.join(10)


def test_a_follower_is_woken_by_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 60.0)
    with waiting() as (history, _, found, thread):
        note(history, "a")
        thread.join(10)
        assert [jobs(batch) for batch in found] == [[(2, "a")]]


def test_a_follower_that_has_left_leaves_no_thread() -> None:
    with waiting() as (_, gone, found, thread):
        gone.set()
        thread.join(10)
        assert not thread.is_alive()
        assert [batch.events for batch in found] == [()]


@pytest.mark.parametrize("wrong", [{"after": -1}, {"wait_s": -1.0}, {"wait_s": 1e9}, {"after": "x"}, {"daemon": 5}])
def test_a_request_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        EventsRequest.from_json(wrong)


def test_words_that_are_not_utf_8_are_kept_as_they_are() -> None:
    history = History()
    history.note(OURSELVES.uid, ProcessEnded(job="llm", pid=1, state="\udcff"))
    assert asked(history).events[1].to_json()["state"] == "\udcff"
