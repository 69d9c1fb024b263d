"""Times of day at which models are woken: clocks that jump, summer time, and a day with and without them."""

import time
from datetime import datetime

import pytest
from test_serve_day import a_day
from test_serve_policies import NOW, view

from gcr.serve.plan import plan
from gcr.serve.policies import BUILT_IN, Lru
from gcr.serve.schedule import LATE_S, Schedule, next_time
from gcr.serve.states import State

GIB = 1 << 30


@pytest.fixture(autouse=True)
def berlin(monkeypatch):
    """The clock goes forward at 2026-03-29 02:00 and back at 2026-10-25 03:00."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(fold=fold).timestamp()


def test_local_times_and_days():
    assert next_time("30 13 * * Mon-Fri", at("2026-11-27 13:30")) == at("2026-11-30 13:30")  # from a Friday on
    assert next_time("0 8 * * *", at("2026-11-27 07:59:59")) == at("2026-11-27 08:00")


@pytest.mark.parametrize("text", ["", "8:00", "61 * * * *", "* * * *", "0 0 30 2 *", "0 8 * * Monday-"])
def test_what_is_no_expression(text):
    with pytest.raises(ValueError, match="is no cron expression"):
        next_time(text, 0.0)


def test_each_time_comes_once_and_the_model_is_named():
    schedule = Schedule({"a": ["0 8 * * *", "0 9 * * *"], "b": ["0 8 * * *"], "c": []}, at("2026-11-27 07:00"))
    found = {}
    for minute in range(3 * 60 * 6):  # every ten seconds for three hours
        now = at("2026-11-27 07:00") + minute * 10
        found |= {(name, now): 1 for name in schedule.due(now)}
    eight, nine = at("2026-11-27 08:00"), at("2026-11-27 09:00")
    assert sorted(found) == [("a", eight), ("a", nine), ("b", eight)]


def test_a_time_that_the_clock_skips_comes_an_hour_later_and_one_that_it_shows_twice_comes_once():
    spring = next_time("30 2 * * *", at("2026-03-28 12:00"))
    assert datetime.fromtimestamp(spring).isoformat() == "2026-03-29T03:30:00"
    autumn = at("2026-10-25 00:00")
    schedule, times = Schedule({"a": ["30 2 * * *"]}, autumn), []
    for minute in range(6 * 60):
        times += [autumn + minute * 60 for _ in schedule.due(autumn + minute * 60)]
    assert times == [at("2026-10-25 02:30", fold=0)]
    assert times[0] != at("2026-10-25 02:30", fold=1)


def test_a_clock_that_jumps():
    began = at("2026-11-27 07:00")
    schedule = Schedule({"a": ["0 8 * * *"]}, began)
    assert schedule.due(at("2026-11-27 08:05")) == ["a"]  # five minutes late
    assert schedule.due(at("2026-11-28 08:00") + LATE_S + 1) == []  # the machine slept, and the time is long over
    assert schedule.due(at("2031-01-01 00:00")) == []  # a wrong clock
    assert schedule.due(at("2026-11-29 07:00")) == []  # set right again
    assert schedule.due(at("2026-11-29 08:00")) == ["a"]


def test_after_a_long_sleep_the_latest_time_counts_and_only_once():
    schedule = Schedule({"a": ["*/5 * * * *"]}, at("2026-11-27 07:01"))
    now = at("2026-12-27 07:01")
    assert (schedule.due(now), schedule.due(now + 1)) == (["a"], [])


def test_a_model_whose_time_has_come_gets_room_after_those_with_requests():
    called = view("called", State.PARKED, called=True)
    assert plan([view("idle"), called], GIB, Lru(), NOW).park == ("idle",)
    assert plan([called], GIB, Lru(), NOW).begin == ("called",)
    asked = view("asked", State.PARKED, waiting=1, since=NOW - 1)
    assert plan([called, asked], GIB, Lru(), NOW).begin == ("asked",)
    assert plan([view("there", called=True)], GIB, Lru(), NOW).begin == ()


@pytest.mark.parametrize("policy", BUILT_IN, ids=lambda each: each.name)
def test_on_a_day_a_model_that_was_called_in_time_makes_its_first_request_wait_less(policy):
    """`rare` is asked for at every full hour; called a minute before, it is there."""
    hours = [3600.0 * hour for hour in range(1, 11)]
    asked = [(each, "rare") for each in hours]
    without = a_day(policy, more=asked)
    called = a_day(policy, more=asked, called=[(each - 60, "rare") for each in hours])
    waits = [sum(day.waits["rare"]) for day in (without, called)]
    assert waits[0] - waits[1] >= len(hours) / 2  # a way takes a second; the trace's own requests wait as before
