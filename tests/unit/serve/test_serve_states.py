"""States of a model: each move of the table is taken, and no other one."""

from itertools import product

import pytest

from gcr.serve.states import AWAY, CHANGING, HOLDS_ROOM, MOVES, Event, IllegalMove, State, moved


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_a_move_is_in_the_table_or_is_refused(state, event):
    if (state, event) in MOVES:
        assert moved(state, event) is MOVES[state, event]
        return
    with pytest.raises(IllegalMove):
        moved(state, event)


def test_every_state_can_be_reached_and_left():
    reached, fresh = {State.COLD}, {State.COLD}
    while fresh:
        fresh = {to for (origin, _), to in MOVES.items() if origin in fresh} - reached
        reached |= fresh
    assert reached == {*State}
    assert {origin for origin, _ in MOVES} == {*State}


def test_a_death_is_heard_in_every_state_with_a_job():
    assert {origin for origin, event in MOVES if event is Event.DIED} == {*State} - {State.COLD, State.FAILED}


def test_a_model_is_away_or_holds_room_or_has_failed():
    assert AWAY | HOLDS_ROOM | {State.FAILED} == {*State}
    assert not AWAY & HOLDS_ROOM
    assert CHANGING < HOLDS_ROOM
