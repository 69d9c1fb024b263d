"""The state machine: docs/contract.md §2 in this test's own words, compared edge by edge with the module's table."""

from itertools import pairwise, product

import pytest

from gcr.errors import WrongState
from gcr.job.states import EDGES, ENDS, HELD, IllegalMove, State, Strategy, edge, job_state, move

OPENING = ["running prepared", "prepared quiesced", "prepared running", "quiesced prepared", "quiesced running"]
HAND_OVER = ["quiesced handed_over", "handed_over quiesced"]
DRAIN = ["handed_over drained", "drained handed_over"]
LEGAL = {
    "handoff": [
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
        "suspended stopped",
    ],
    "data_only": [
        *OPENING,
        *HAND_OVER,
        *DRAIN,
        "drained data_suspended",
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
        "suspended stopped",
    ],
    "live": OPENING,
}
SAFE_INSIDE = {"running", "prepared", "quiesced"}  # all of the process is in the process


def legal_moves(strategy: str) -> set[tuple[str, str]]:
    moves = {tuple(line.split()) for line in LEGAL[strategy]}
    places = {place for ends in moves for place in ends} - {"stopped"}
    moves |= {(place, "exited") for place in places}
    return moves | {(place, "lost") for place in places - SAFE_INSIDE}


ALL = [(s.value, a.value, b.value) for s, a, b in product(Strategy, State, State)]


@pytest.mark.parametrize("strategy, state, to", [case for case in ALL if case[1:] in legal_moves(case[0])])
def test_every_legal_move(strategy, state, to):
    assert move(State(state), State(to), Strategy(strategy)) is State(to)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_every_other_move_is_refused(strategy):
    illegal = [case[1:] for case in ALL if case[0] == strategy and case[1:] not in legal_moves(strategy)]
    assert len(illegal) > 100
    for state, to in illegal:
        with pytest.raises(IllegalMove, match=f"{state} → {to} "):
            move(State(state), State(to), strategy)


def test_an_illegal_move_names_the_state_that_stays():
    with pytest.raises(WrongState) as caught:
        move(State.RUNNING, State.SUSPENDED, Strategy.HANDOFF)
    assert caught.value.state == "running"


@pytest.mark.parametrize("strategy", list(Strategy))
def test_every_undo_is_an_edge_of_the_same_table_and_leads_back(strategy):
    by_name = {each.name: each for each in EDGES[strategy]}
    for each in EDGES[strategy]:
        if each.undo is not None:
            back = by_name[each.undo]
            assert (back.source, back.target) == (each.target, each.source), each.name


COMMITS = {"commit", "commit_restore", "stop", "exit", "lose"}


@pytest.mark.parametrize("strategy", list(Strategy))
def test_only_commits_and_undos_have_no_way_back(strategy):
    undos = {each.undo for each in EDGES[strategy]} | {"resume"}
    final = {each.name for each in EDGES[strategy] if each.undo is None} - undos
    assert final <= COMMITS


@pytest.mark.parametrize("strategy", list(Strategy))
def test_names_of_edges_are_unique_but_for_the_ends(strategy):
    names = [each.name for each in EDGES[strategy] if each.target not in (State.EXITED, State.LOST)]
    assert len(names) == len(set(names))


PATHS = {
    "control first": (
        "handoff",
        "running prepared quiesced handed_over frozen frozen_drained suspended restoring running",
    ),
    "data first": (
        "handoff",
        "running prepared quiesced handed_over drained frozen_drained suspended restoring running",
    ),
    "data only": ("data_only", "running prepared quiesced handed_over drained data_suspended restoring running"),
    "driver": ("driver", "running frozen suspended restoring running"),
    "live": ("live", "running prepared quiesced running"),
    "stop": ("handoff", "frozen_drained suspended stopped"),
}


@pytest.mark.parametrize("strategy, path", PATHS.values(), ids=PATHS.keys())
def test_the_paths_of_the_contract(strategy, path):
    for state, to in pairwise(path.split()):
        assert move(State(state), State(to), Strategy(strategy)) == to


@pytest.mark.parametrize("strategy", list(Strategy))
def test_from_anywhere_before_a_commit_the_undos_lead_home(strategy):
    """Follow undo edges only: every state a forward step leads to must reach where the transaction began."""
    starts = {State.RUNNING, State.SUSPENDED, State.DATA_SUSPENDED}
    forward = [each for each in EDGES[strategy] if each.undo]
    for step in forward:
        state = step.target
        for _ in range(len(forward)):
            undo = [each.undo for each in forward if each.target == state]
            if state in starts or not undo:
                break
            state = next(each.target for each in EDGES[strategy] if each.name == undo[0])
        assert state in starts, step


def test_nothing_leads_out_of_an_end_and_all_held_can_be_lost():
    for each in (e for edges in EDGES.values() for e in edges):
        assert each.source not in ENDS
        assert each.target is not State.LOST or each.source in HELD


def test_an_edge_tells_its_undo():
    assert edge(State.QUIESCED, State.HANDED_OVER, Strategy.HANDOFF).undo == "map_back"


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
        ("stopped exited", "stopped"),
        ("stopped suspended", "suspended"),
        ("running lost", "lost"),
        ("exited lost stopped", "lost"),
    ],
)
def test_the_state_of_a_job(states, expected):
    assert job_state(State(word) for word in states.split()) == expected
    assert job_state(State(word) for word in reversed(states.split())) == expected


def test_every_mix_of_states_gives_a_job_a_state():
    for mix in product(State, State, State):
        assert isinstance(job_state(mix), State)
