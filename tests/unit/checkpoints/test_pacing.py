"""When a save is due, in a simulated training: its steps, its disk and its stalls take seconds of a simulated clock."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, field

from gcr.checkpoints.pacing import FIRST, Pacer, Places, Turn


def alone(decide: Callable[[], Turn]) -> Turn:
    return decide()


class Training(Struct):
    """A training that saves when it is due. `drag`: by how much a step beside a save is longer."""

    step_s: float
    blocked_s: Callable[[int], float]  # by the number of the save
    write_s: Callable[[int], float]
    slowdown: float = 0.03
    drag: float = 0.0
    is_durable: bool = True
    fitting: Callable[[], int] | None = None
    now: float = 0.0
    lost: float = 0.0
    waited: float = 0.0
    saved: list[int] = field(default_factory=list)
    asked: int = 0
    _writing: deque[tuple[float, Callable[[bool], None]]] = field(default_factory=deque)
    _places: Places = field(default_factory=lambda: Places(1))

    def run(self, steps: int) -> "Training":
        pacer = Pacer(self.slowdown, self._places, self._agreed, self.fitting, lambda: self.now)
        for step in range(steps):
            took = self.step_s * (1 + self.drag * bool(self._writing))
            self.lost += took - self.step_s
            self._go_on(self.now + took)
            if pacer.due(step):
                self._save(pacer, step)
        return self

    def _agreed(self, decide: Callable[[], Turn]) -> Turn:
        self.asked += 1
        return decide()

    def _go_on(self, until: float) -> None:
        while self._writing and self._writing[0][0] <= until:
            self.now, ended = self._writing.popleft()
            ended(self.is_durable)
            self._places.release()
        self.now = until

    def _save(self, pacer: Pacer, step: int) -> None:
        began, number = self.now, len(self.saved)
        if self._places.is_full:
            self._go_on(self._writing[0][0])
            self.waited += self.now - began
        assert self._places.acquire(blocking=False)
        self.now += self.blocked_s(number)
        ended = pacer.began(self.now - began)
        last = self._writing[-1][0] if self._writing else 0.0
        self._writing.append((max(self.now, last) + self.write_s(number), ended))
        self.lost += self.now - began
        self.saved.append(step)


def intervals(training: Training) -> Sequence[int]:
    return [later - before for before, later in pairwise(training.saved)]


@settings(max_examples=20, deadline=None)
@given(
    step_s=st.floats(0.01, 2),
    blocked=st.lists(st.floats(0, 3), min_size=8, max_size=8),
    writes=st.lists(st.floats(0.01, 30), min_size=8, max_size=8),
    slowdown=st.floats(0.01, 0.2),
)
def test_the_bound_holds_whatever_saves_cost(
    step_s: float, blocked: list[float], writes: list[float], slowdown: float
) -> None:
    steps = 600
    made = Training(step_s, lambda n: blocked[n % 8], lambda n: writes[n % 8], slowdown).run(steps)
    assert made.lost <= slowdown * steps * step_s + max(blocked) + 1e-6, "but the last save, which is not earned yet"
    assert made.waited == 0
    assert made.saved
    assert made.asked < 12 * len(made.saved) + 40


@pytest.mark.parametrize(
    "blocked_s, write_s, drag, ideal",
    [
        (0.03, 0.5, 0.0, 10),  # earned by 1.0 s of steps
        (0.001, 7.95, 0.0, 84),  # the disk
        (0.0001, 0.01, 0.0, 1),  # with each step
        (0.03, 2.0, 0.1, 71),  # a save costs as much as 20 steps are longer by, 0.18 s, beside 0.03
    ],
)
def test_it_converges_to_the_shortest_interval_within_a_tenth(
    blocked_s: float, write_s: float, drag: float, ideal: int
) -> None:
    first = 2.0  # the first save makes its memory, and is repaid
    made = Training(0.1, lambda n: blocked_s if n else first, lambda _: write_s, drag=drag).run(8000)
    assert abs(intervals(made)[-1] - ideal) <= max(1, ideal // 10), intervals(made)
    assert made.lost <= 0.03 * 8000 * 0.1 * 1.03
    assert made.saved[0] == FIRST - 1


def test_it_follows_a_disk_that_gets_slower_and_fast_again() -> None:
    made = Training(0.1, lambda _: 0.0, lambda n: 12.0 if 40 <= n < 80 else 2.0).run(8000)
    found = intervals(made)
    assert (found[30], found[70], found[-1]) == (21, 126, 21)
    assert made.waited == 0


def test_as_many_saves_are_in_flight_as_bridge_a_slow_one_and_host_memory_holds() -> None:
    """Every eighth save takes two and a half intervals."""
    seen: list[int] = []

    def training(most: int) -> Training:
        made = Training(0.1, lambda _: 0.0285, lambda n: 2.4 if n % 8 == 7 else 0.5, fitting=lambda: most)
        made.run(2000)
        seen.append(made._places.most)
        return made

    few, many = training(1), training(8)
    assert seen == [1, 3]
    assert (max(intervals(few)[-16:]), max(intervals(many)[-16:])) == (25, 10)
    assert (few.waited, many.waited) == (0, 0)


def test_saves_that_fail_come_ever_more_seldom() -> None:
    made = Training(0.1, lambda _: 0.0, lambda _: 0.01, is_durable=False).run(2000)
    assert intervals(made)[:5] == [FIRST << n for n in range(1, 6)]


def test_all_ranks_have_one_answer_and_ask_only_when_a_save_may_be_due() -> None:
    """The second rank measures other times, and never decides."""
    turns: list[Turn] = []

    def decided(decide: Callable[[], Turn]) -> Turn:
        turns.append(decide())
        return turns[-1]

    first = Pacer(0.03, Places(1), decided)
    second = Pacer(0.03, Places(1), lambda _: turns[-1], clock=lambda: 7.0)
    began = time.monotonic()
    for step in range(10_000):
        due = first.due(step)
        assert due == second.due(step) == second.due(step)
        if due:
            first.began(0.05)(True)
            second.began(9.0)(True)
    assert len(turns) < 50, "no save is earned in so short a time"
    assert (time.monotonic() - began) / 30_000 < 100e-6


def test_places_are_waited_for_and_may_become_more() -> None:
    places = Places(1)
    assert (places.acquire(), places.acquire(blocking=False)) == (True, False)
    waiting = Thread(target=places.acquire)
    waiting.start()
    places.most = 2
    waiting.join(10)
    assert not waiting.is_alive()
    places.release()
    assert places.is_full is False
