"""Turns at the room of devices: makers or takers, never both; who waits gets a turn, or an error."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from random import Random

import pytest

from gcr.engine.turns import Turns
from gcr.errors import DeadlinePassed

HERE, THERE = "GPU-1", "GPU-2"


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        ("making", "making", False),
        ("taking", "taking", False),
        ("making", "taking", True),
        ("taking", "making", True),
        ("alone", "making", True),
        ("alone", "taking", True),
        ("alone", "alone", True),
        ("taking", "alone", True),
    ],
)
def test_uses_of_one_kind_go_side_by_side(first: str, second: str, waits: bool) -> None:
    turns = Turns()
    with ExitStack() as stack:
        stack.enter_context(getattr(turns, first)([HERE], 1.0))
        with getattr(turns, second)([THERE], 0.01):  # another device
            pass
        if waits:
            with pytest.raises(DeadlinePassed):
                stack.enter_context(getattr(turns, second)([THERE, HERE], 0.01))
        else:
            stack.enter_context(getattr(turns, second)([THERE, HERE], 0.01))
    with turns.alone([HERE, THERE], 0.01):  # nothing is left of those that are over
        pass


def test_a_turn_comes_when_the_other_use_is_over_also_by_an_error() -> None:
    turns, here, over = Turns(), threading.Event(), threading.Event()

    def take() -> None:
        with turns.taking([HERE, HERE], 1.0):
            here.set()
            over.wait(10)
            raise ValueError

    with ThreadPoolExecutor(2) as pool:
        taker = pool.submit(take)
        assert here.wait(10)
        maker = pool.submit(lambda: turns.making([HERE], 10.0).__enter__())
        assert not maker.done()
        over.set()
        maker.result()
        assert isinstance(taker.exception(), ValueError)


def test_no_two_kinds_at_once_whatever_the_order() -> None:
    turns, lock = Turns(), threading.Lock()
    there: dict[str, Counter[str]] = {HERE: Counter(), THERE: Counter()}
    mixed: list[str] = []

    def work(seed: int) -> None:
        chance = Random(seed)
        for _ in range(200):
            kind = chance.choice(("making", "taking", "alone"))
            devices = chance.sample([HERE, THERE], chance.randint(1, 2))
            with getattr(turns, kind)(devices, 30.0):
                note(devices, kind, 1)
                note(devices, kind, -1)

    def note(devices: list[str], kind: str, more: int) -> None:
        with lock:
            for device in devices:
                there[device][kind] += more
                kinds = +there[device]
                if len(kinds) > 1 or kinds["alone"] > 1:
                    mixed.append(str(kinds))

    with ThreadPoolExecutor(6) as pool:
        for each in [pool.submit(work, seed) for seed in range(6)]:
            each.result()
    assert mixed == []
    assert not turns._under_way
