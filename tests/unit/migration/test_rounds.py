"""The rounds of copying end, and each one that is made is likely to pay."""

from hypothesis import given
from hypothesis import strategies as st

from gcr.migration.rounds import GOAL_S, MOST, SHRINKS, Round, is_worth_another, paid

MIB = 1 << 20
made = st.builds(Round, st.integers(0, 1 << 40), st.floats(0.01, 1e4), st.floats(0.01, 1e4))


def rounds(*sizes: int, rate: float = MIB) -> list[Round]:
    return [Round(size, 1.0, size / rate or 0.01) for size in sizes]


def test_the_first_round_is_always_made():
    assert is_worth_another([])


def test_another_is_made_while_each_sends_clearly_less():
    assert is_worth_another(rounds(1000 * MIB))
    assert is_worth_another(rounds(1000 * MIB, 300 * MIB))
    assert not is_worth_another(rounds(1000 * MIB, 300 * MIB, 250 * MIB))


def test_none_is_made_once_the_rest_is_sent_within_the_goal():
    assert not is_worth_another(rounds(1000 * MIB, MIB // 4))
    assert not is_worth_another(rounds(0))


@given(st.lists(made, min_size=1, max_size=MOST + 2))
def test_another_round_is_never_made_without_need(done: list[Round]):
    if not is_worth_another(done):
        return
    rate = max(each.bytes_sent / each.pull_s for each in done)
    assert len(done) < MOST
    assert done[-1].bytes_sent > rate * GOAL_S
    assert len(done) == 1 or done[-1].bytes_sent < SHRINKS * done[-2].bytes_sent


def test_a_round_that_sent_as_much_as_the_one_before_did_not_pay():
    done = rounds(100 * MIB, 50 * MIB, 49 * MIB)
    assert [paid(done, number) for number in range(3)] == [True, True, False]
