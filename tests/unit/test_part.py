"""A part of a cut: it waits at barriers for the coordinator's word, and gives up where that does not come."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from gcr.api.barriers import Barrier
from gcr.cuterrors import CutGivenUp, NoSuchCut
from gcr.engine.node import Course
from gcr.engine.part import Obey, Part, no_ranks
from gcr.errors import DeadlinePassed, Interrupted, PeerGone, UsageError
from gcr.standstill.messages import Lead, Report

SECOND = 1.0
LONG = 20.0  # seconds: what is waited for comes at once, on a machine that is not busy


class Waiting:
    """A part that waits at a barrier on a thread of its own. `told`: the events that its caller has heard."""

    def __init__(self, part: Part, timeout: float = 30.0) -> None:
        self.told: list[str | None] = []
        self.course = Course("checkpoint", 1, timeout, lambda event: self.told.append(event.barrier), part=part)
        self._pool = ThreadPoolExecutor(1)

    def at(self, barrier: Barrier, obey: Obey = no_ranks) -> "Future[Barrier]":
        before = len(self.told)
        waits = self._pool.submit(self.course.hold, barrier, obey)
        until(lambda: len(self.told) > before or waits.done())
        return waits


def until(probe: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not probe():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_it_tells_that_it_waits_and_passes_once_it_is_told_go():
    part = Part("c", SECOND)
    waiting = Waiting(part)
    waits = waiting.at(Barrier.ADMITTED)
    assert (part.at, waiting.told) == (Barrier.ADMITTED, ["admitted"])
    part.go(Barrier.STILL)  # another one
    time.sleep(0.1)
    assert not waits.done()
    part.go(Barrier.ADMITTED)
    waits.result(LONG)
    assert part.at is None
    assert "went_admitted" in waiting.course.marks


def test_it_passes_a_barrier_that_it_was_told_of_before():
    part = Part("c", SECOND)
    part.go(Barrier.STILL)
    Waiting(part).at(Barrier.STILL).result(LONG)


def test_it_tells_again_that_it_waits():
    part = Part("c", 10 * SECOND)
    waiting = Waiting(part)
    waits = waiting.at(Barrier.ADMITTED)
    until(lambda: len(waiting.told) >= 2)
    assert {*waiting.told} == {"admitted"}
    part.give_up()
    with pytest.raises(CutGivenUp):
        waits.result(LONG)


def test_it_tells_less_often_later_but_never_stops(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gcr.engine.part.TELL_AGAIN_S", 0.1)
    monkeypatch.setattr("gcr.engine.part.MOST_PAUSE_S", 0.2)
    part = Part("c", 10 * SECOND)
    began, waiting = time.monotonic(), Waiting(part)
    waits = waiting.at(Barrier.ADMITTED)
    until(lambda: len(waiting.told) >= 7)
    assert time.monotonic() - began >= 0.1 + 5 * 0.2  # the pauses between seven; a busy machine makes them longer
    part.go(Barrier.ADMITTED)
    waits.result(LONG)


def test_at_the_standstill_it_gives_up_by_itself_and_elsewhere_it_waits():
    with pytest.raises(CutGivenUp, match=r"not heard of within 0\.05 s"):
        Waiting(Part("c", 0.05)).at(Barrier.STILL).result(LONG)
    part = Part("c", 0.05)
    waits = Waiting(part).at(Barrier.ADMITTED)
    time.sleep(0.2)
    assert not waits.done()
    part.go(Barrier.ADMITTED)
    waits.result(LONG)


def test_its_command_is_bounded_all_the_same():
    with pytest.raises(DeadlinePassed):
        Waiting(Part("c", SECOND), timeout=0.1).at(Barrier.ADMITTED).result(LONG)


def test_a_caller_that_leaves_gives_it_up():
    waiting = Waiting(Part("c", SECOND))
    waits = waiting.at(Barrier.ADMITTED)
    waiting.course.cancelled.set()
    with pytest.raises(Interrupted):
        waits.result(LONG)


def test_a_part_that_was_given_up_begins_no_further_phase():
    part = Part("c", SECOND)
    waiting = Waiting(part)
    part.give_up()
    with pytest.raises(CutGivenUp):
        waiting.course.left(1.0)
    with pytest.raises(CutGivenUp):
        waiting.at(Barrier.READY).result(LONG)


def test_a_second_attempt_after_the_standstill_would_be_another_cut():
    part = Part("c", SECOND)
    waiting = Waiting(part)
    for barrier in (Barrier.ADMITTED, Barrier.STILL):
        part.go(barrier)
        waiting.at(barrier).result(LONG)
    with pytest.raises(CutGivenUp, match="ended after the job stood still"):
        waiting.at(Barrier.ADMITTED).result(LONG)


def test_a_second_attempt_before_it_passes_what_it_may_pass_already():
    part = Part("c", SECOND)
    part.go(Barrier.ADMITTED)
    waiting = Waiting(part)
    for _ in range(2):
        waiting.at(Barrier.ADMITTED).result(LONG)


# ---- led by the coordinator -----------------------------------------------------------------------------------------

AT_REST = (Report(70, 0, False, 0, 0, -0.5),)


class Ranks:
    """Those of a part. `error`: raised by the next order."""

    def __init__(self) -> None:
        self.leads: list[Lead] = []
        self.error: Exception | None = None

    def obey(self, lead: Lead) -> tuple[Report, ...]:
        self.leads.append(lead)
        if self.error:
            raise self.error
        return AT_REST


def led(part: Part, ranks: Ranks, barrier: Barrier) -> tuple[Waiting, "Future[Barrier]"]:
    waiting = Waiting(part)
    return waiting, waiting.at(barrier, ranks.obey)


def test_a_part_that_stands_still_obeys_and_comes_to_the_standstill_once_more():
    part, ranks = Part("c", 10 * SECOND), Ranks()
    waiting, waits = led(part, ranks, Barrier.STILL)
    assert part.led(Lead()) == AT_REST
    assert (part.at, ranks.leads) == (Barrier.APART, [Lead()])
    part.go(Barrier.STILL)  # said before it was led
    assert part.led(Lead(closed=False)) == AT_REST
    part.go(Barrier.APART)
    assert waits.result(LONG) is Barrier.APART
    assert "went_still" not in waiting.course.marks
    assert waiting.at(Barrier.STILL, ranks.obey).result(LONG) is Barrier.STILL
    with pytest.raises(NoSuchCut):
        part.led(Lead())


def test_an_order_that_is_refused_changes_nothing_and_one_that_fails_gives_the_cut_up():
    part, ranks = Part("c", 10 * SECOND), Ranks()
    _, waits = led(part, ranks, Barrier.APART)
    ranks.error = UsageError("a stranger")
    with pytest.raises(UsageError):
        part.led(Lead())
    assert (waits.done(), part.is_given_up) == (False, False)
    ranks.error = PeerGone("process 70 is gone")
    with pytest.raises(NoSuchCut, match="process 70 is gone"):
        part.led(Lead())
    with pytest.raises(PeerGone):
        waits.result(LONG)
    assert part.is_given_up


def test_it_is_led_only_while_it_stands():
    part, ranks = Part("c", SECOND), Ranks()
    with pytest.raises(NoSuchCut):
        part.led(Lead())
    waiting, waits = led(part, ranks, Barrier.ADMITTED)
    with pytest.raises(NoSuchCut):
        part.led(Lead())
    waiting.course.cancelled.set()
    with pytest.raises(Interrupted):
        waits.result(LONG)


def test_the_time_that_it_stands_counts_from_the_stop():
    part = Part("c", SECOND)
    part.stopped_at = time.monotonic() - 2 * SECOND
    with pytest.raises(CutGivenUp, match="not heard of within 1 s"):
        Waiting(part).at(Barrier.APART).result(LONG)


def test_a_second_attempt_after_it_was_led_would_be_another_cut():
    part, ranks = Part("c", SECOND), Ranks()
    part.go(Barrier.APART)
    waiting, waits = led(part, ranks, Barrier.APART)
    assert waits.result(LONG) is Barrier.APART
    with pytest.raises(CutGivenUp, match="ended after the job stood still"):
        waiting.at(Barrier.ADMITTED).result(LONG)


def test_without_a_cut_no_barrier_is_waited_at():
    Course("checkpoint", 1, 30.0).hold(Barrier.STILL)


def test_it_waits_for_the_images_of_the_others_after_it_stood_still():
    part = Part("c", SECOND, durable_s=0.05)
    part.go(Barrier.STILL)
    waiting = Waiting(part)
    waiting.at(Barrier.STILL).result(LONG)
    with pytest.raises(CutGivenUp, match=r"within 0\.05 s"):
        waiting.at(Barrier.DURABLE).result(LONG)


@pytest.mark.parametrize("end", ["its caller leaves", "no word comes"])
def test_with_the_root_in_its_store_its_image_counts_where_no_word_comes_any_more(end: str):
    part = Part("c", SECOND, durable_s=0.3 if end == "no word comes" else 30.0)
    waiting = Waiting(part)
    waits = waiting.at(Barrier.DURABLE)
    part.keep()
    if end == "its caller leaves":
        waiting.course.cancelled.set()
    waits.result(LONG)
    assert waiting.course.left(7.0) == 7.0  # whatever follows is not cut short


def test_it_is_given_up_by_a_word_also_with_the_root_in_its_store():
    part = Part("c", SECOND)
    waits = Waiting(part).at(Barrier.DURABLE)
    part.keep()
    part.give_up()
    with pytest.raises(CutGivenUp):
        waits.result(LONG)
    with pytest.raises(CutGivenUp):
        part.keep()
