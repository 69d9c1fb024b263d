"""The state machine: docs/contract.md §2 in this test's own words, compared edge by edge with the module's table."""

from itertools import pairwise, product

import pytest

from gcr.errors import WrongState
from gcr.job.states import (
    AT_REST,
    EDGES,
    HELD,
    IllegalMove,
    State,
    Way,
    after,
    before,
    edge,
    job_state,
    move,
    settled,
)

OPENING = ["running prepared", "prepared quiesced", "prepared running", "quiesced prepared"]
HAND_OVER = ["quiesced handed_over", "handed_over quiesced"]
DRAIN = ["handed_over drained", "drained handed_over"]
LEGAL = {
    "whole": [
        *OPENING,
        *HAND_OVER,
        *DRAIN,
        "handed_over frozen",
        "frozen handed_over",
        "frozen frozen_drained",
        "frozen_drained frozen",
        "drained frozen_drained",
        "frozen_drained drained",
        "frozen_drained suspended",
        "suspended restoring",
        "restoring suspended",
        "restoring running",
    ],
    "data_only": [
        *OPENING,
        *HAND_OVER,
        *DRAIN,
        "drained data_suspended",
        "data_suspended frozen_drained",
        "frozen_drained data_suspended",
        "data_suspended restoring",
        "restoring data_suspended",
        "restoring running",
    ],
    "driver": [
        "running frozen",
        "frozen running",
        "frozen suspended",
        "suspended restoring",
        "restoring suspended",
        "restoring running",
    ],
    "running_on": [*OPENING, "quiesced running"],
}
SAFE_INSIDE = {"running", "prepared", "quiesced"}  # all of the process is in the process


def legal_moves(way: str) -> set[tuple[str, str]]:
    moves = {tuple(line.split()) for line in LEGAL[way]}
    places = {place for ends in moves for place in ends}
    moves |= {(place, "lost") for place in places - SAFE_INSIDE}
    return moves | {(place, "exited") for place in places | {to for _, to in moves}}


ALL = [(s.value, a.value, b.value) for s, a, b in product(Way, State, State)]


@pytest.mark.parametrize("way, state, to", [case for case in ALL if case[1:] in legal_moves(case[0])])
def test_every_legal_move(way, state, to):
    assert move(State(state), State(to), Way(way)) is State(to)


@pytest.mark.parametrize("way", list(Way))
def test_every_other_move_is_refused(way):
    illegal = [case[1:] for case in ALL if case[0] == way and case[1:] not in legal_moves(way)]
    assert len(illegal) > 100
    for state, to in illegal:
        with pytest.raises(IllegalMove, match=f"{state} → {to} "):
            move(State(state), State(to), way)


def test_an_illegal_move_names_the_state_that_stays():
    with pytest.raises(WrongState) as caught:
        move(State.RUNNING, State.SUSPENDED, Way.WHOLE)
    assert caught.value.state == "running"


@pytest.mark.parametrize("way", list(Way))
def test_every_undo_is_an_edge_of_the_same_table_and_leads_back(way):
    found = {(each.name, each.source): each for each in EDGES[way]}
    for each in EDGES[way]:
        if each.undo is not None:
            assert found[each.undo, each.target].target == each.source, each.name
            assert before(each.target, each.name, way) == each.source
            assert after(each.source, each.name, way) == each.target


COMMITS = {"commit", "commit_restore", "resume", "exit", "lose"}


@pytest.mark.parametrize("way", list(Way))
def test_only_commits_and_undos_have_no_way_back(way):
    undos = {each.undo for each in EDGES[way]}
    final = {each.name for each in EDGES[way] if each.undo is None} - undos
    assert final <= COMMITS


@pytest.mark.parametrize("way", list(Way))
def test_a_state_has_one_edge_of_a_name_and_one_that_leads_to_it(way):
    out = [(each.name, each.source) for each in EDGES[way]]
    back = [(each.name, each.target) for each in EDGES[way] if each.undo]
    assert (len(out), len(back)) == (len(set(out)), len(set(back)))


@pytest.mark.parametrize("way", list(Way))
def test_a_step_that_was_not_taken_is_not_taken_back(way):
    taken = {(each.name, each.target) for each in EDGES[way] if each.undo}
    for state, step in product(State, {name for name, _ in taken}):
        assert (before(state, step, way) != state) == ((step, state) in taken)


def test_a_step_that_cannot_begin_is_refused():
    with pytest.raises(IllegalMove, match="freeze does not begin at prepared"):
        after(State.PREPARED, "freeze", Way.WHOLE)


PATHS = {
    "control first": (
        "whole",
        "running prepared quiesced handed_over frozen frozen_drained suspended restoring running",
    ),
    "data first": (
        "whole",
        "running prepared quiesced handed_over drained frozen_drained suspended restoring running",
    ),
    "data only": ("data_only", "running prepared quiesced handed_over drained data_suspended restoring running"),
    "driver": ("driver", "running frozen suspended restoring running"),
    "running on": ("running_on", "running prepared quiesced running"),
}


@pytest.mark.parametrize("way, path", PATHS.values(), ids=PATHS.keys())
def test_the_paths_of_the_contract(way, path):
    for state, to in pairwise(path.split()):
        assert move(State(state), State(to), Way(way)) == to


@pytest.mark.parametrize("way", list(Way))
def test_from_anywhere_before_a_commit_the_undos_lead_home(way):
    """Follow undo edges only: every state a forward step leads to must reach where the transaction began."""
    starts = {State.RUNNING, State.SUSPENDED, State.DATA_SUSPENDED}
    forward = [each for each in EDGES[way] if each.undo]
    for step in forward:
        state = step.target
        for _ in range(len(forward)):
            undo = [each.undo for each in forward if each.target == state]
            if state in starts or not undo:
                break
            state = next(e.target for e in EDGES[way] if (e.name, e.source) == (undo[0], state))
        assert state in starts, step


@pytest.mark.parametrize("way", list(Way))
def test_every_state_of_a_way_is_reached_from_running(way):
    reached, states = {State.RUNNING}, {state for each in EDGES[way] for state in (each.source, each.target)}
    for _ in states:
        reached |= {each.target for each in EDGES[way] if each.source in reached}
    assert reached == states


def test_every_state_belongs_to_a_way():
    assert {each.target for edges in EDGES.values() for each in edges} == set(State)


def test_only_an_exit_leads_out_of_an_end_and_all_held_can_be_lost():
    for each in (e for edges in EDGES.values() for e in edges):
        assert each.source not in (State.EXITED, State.LOST) or each.name == "exit"
        assert each.target is not State.LOST or each.source in HELD


def test_an_edge_tells_its_undo():
    assert edge(State.QUIESCED, State.HANDED_OVER, Way.WHOLE).undo == "map_back"


@pytest.mark.parametrize(
    "states, expected",
    [
        ("", "exited"),
        ("running", "running"),
        ("exited exited", "exited"),
        ("running exited", "running"),
        ("running prepared", "running"),
        ("prepared quiesced", "prepared"),
        ("quiesced handed_over", "quiesced"),
        ("frozen drained", "handed_over"),
        ("frozen drained frozen_drained", "handed_over"),
        ("frozen drained prepared", "prepared"),
        ("frozen frozen_drained", "frozen"),
        ("drained frozen_drained", "drained"),
        ("frozen_drained suspended", "frozen_drained"),
        ("suspended suspended exited", "suspended"),
        ("suspended data_suspended", "data_suspended"),
        ("suspended restoring", "restoring"),
        ("running restoring", "restoring"),
        ("running suspended", "restoring"),
        ("running data_suspended exited", "restoring"),
        ("running lost", "lost"),
        ("exited lost suspended", "suspended"),
    ],
)
def test_the_state_of_a_job(states, expected):
    assert job_state(State(word) for word in states.split()) == expected
    assert job_state(State(word) for word in reversed(states.split())) == expected


def test_every_mix_of_states_gives_a_job_a_state():
    for mix in product(State, State, State):
        assert isinstance(job_state(mix), State)


def test_a_process_is_settled_at_rest_and_an_ended_one_stays_ended():
    for state, to in product(State, State):
        if to not in AT_REST:
            with pytest.raises(IllegalMove):
                settled(state, to)
        else:
            assert settled(state, to) == (State.EXITED if state == State.EXITED else to)
