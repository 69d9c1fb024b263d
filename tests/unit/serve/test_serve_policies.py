"""Policies and the plan, as pure functions, on any models at all."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr.policy import Candidate
from gcr.serve import policies
from gcr.serve.plan import Plan, View, next_in, plan
from gcr.serve.policies import BUILT_IN, Cost, Lru, Priority
from gcr.serve.states import AWAY, HOLDS_ROOM, State
from gcr.serve.upstream import Next
from gcr.serveerrors import BadServeConfig

GIB = 1 << 30
NOW = 100.0


def candidate(name: str, **more: object) -> Candidate:
    return Candidate(name=name, **{"bytes": GIB, **more})


def view(name: str, state: State = State.READY, **more: object) -> View:
    own = {each: more.pop(each) for each in list(more) if each not in View.__struct_fields__}
    return View(state=state, candidate=candidate(name, **own), **more)


DEMAND = candidate("demand", waiting=1, since=NOW)


def test_lru_parks_what_was_used_least_recently():
    models = [candidate("new", last_used=9), candidate("old", last_used=1), candidate("mid", last_used=5)]
    assert Lru().leaves(models, DEMAND, NOW) == ["old", "mid", "new"]


def test_lru_serves_the_longest_wait_first():
    assert Lru().comes([candidate("late", since=9.0), candidate("early", since=1.0)], NOW) == ["early", "late"]


def test_priority_outranks_use_and_wait():
    models = [candidate("high", priority=2, last_used=1), candidate("low", priority=1, last_used=9)]
    assert Priority().leaves(models, DEMAND, NOW) == ["low", "high"]
    waiting = [candidate("low", priority=1, since=1.0), candidate("high", priority=2, since=9.0)]
    assert Priority().comes(waiting, NOW) == ["high", "low"]


def test_by_priority_a_busy_model_keeps_its_room_from_a_lower_one():
    busy = candidate("high", priority=2, active=1)
    assert Priority().leaves([busy], candidate("low", priority=1), NOW) == []
    assert Priority().leaves([busy], candidate("equal", priority=2), NOW) == ["high"]


def test_cost_parks_what_is_cheap_to_be_without():
    often = candidate("often", uses=100, wake_s=1.0, last_used=99)
    seldom = candidate("seldom", uses=2, wake_s=1.0, last_used=99)
    slow = candidate("slow", uses=100, wake_s=9.0, last_used=99)
    large = candidate("large", uses=100, wake_s=1.0, last_used=99, bytes=4 * GIB)
    assert Cost().leaves([slow, often, large, seldom], DEMAND, NOW) == ["seldom", "large", "often", "slow"]


# ---- any models at all ----------------------------------------------------------------------------------------------

SIZES = st.one_of(st.none(), st.integers(0, 8 * GIB))


@st.composite
def views(draw: st.DrawFn) -> list[View]:
    found = []
    for index in range(draw(st.integers(1, 6))):
        state = draw(st.sampled_from(State))
        waiting = draw(st.integers(0, 3))
        found.append(
            View(
                state=state,
                candidate=Candidate(
                    name=f"m{index}",
                    priority=draw(st.integers(-1, 1)),
                    bytes=draw(SIZES),
                    active=draw(st.integers(0, 2)) if state is State.READY else 0,
                    waiting=waiting,
                    since=draw(st.floats(0, NOW)) if waiting else None,
                    last_used=draw(st.floats(0, NOW)),
                    uses=draw(st.integers(0, 9)),
                    wake_s=draw(st.floats(0, 9)),
                ),
                pinned=draw(st.booleans()),
                stays=draw(st.booleans()),
                idle=draw(st.one_of(st.none(), st.floats(0, NOW))),
                held_until=draw(st.floats(0, 2 * NOW)),
                may_begin=draw(st.floats(0, 2 * NOW)),
                crowded=draw(st.booleans()),
            )
        )
    return found


ROOMS = st.one_of(st.none(), st.integers(0, 12 * GIB))


@settings(max_examples=150)
@given(views(), ROOMS, st.sampled_from(BUILT_IN))
def test_what_every_plan_keeps(models, room, policy):
    found = plan(models, room, policy, NOW)
    by_name = {each.name: each for each in models}
    assert not found.broken
    for name in found.park:
        each = by_name[name]
        assert each.state is State.READY and not each.pinned and not each.stays, "parks what must not be parked"
        assert each.candidate.active == 0, "parks in the middle of a request"
    for name in found.drain:
        each = by_name[name]
        assert not each.pinned and each.held_until <= NOW
    for name in found.begin:
        each = by_name[name]
        assert each.state in AWAY and each.may_begin <= NOW
        assert each.pinned or each.candidate.waiting
    assert len({*found.begin}) == len(found.begin) and len({*found.park}) == len(found.park)
    assert not {*found.begin} & {*found.park} and not {*found.begin} & {*found.stuck}
    if room is not None and found.begin and all(each.candidate.bytes is not None for each in models):
        holding = [each for each in models if each.state in HOLDS_ROOM]
        begun = [by_name[name] for name in found.begin if not by_name[name].crowded]
        if begun and len(begun) == len(found.begin):
            together = [*holding, *begun]
            assert len(together) == 1 or sum(each.candidate.bytes for each in together) <= room


@settings(max_examples=100)
@given(views(), ROOMS, st.sampled_from(BUILT_IN))
def test_room_is_made_for_a_request_or_it_is_refused_or_something_is_under_way(models, room, policy):
    """No request waits for ever: if nothing is done now, a request that is running, a hold or a way ends first."""
    found = plan(models, room, policy, NOW)
    wanted = [each for each in models if each.wanted and each.may_begin <= NOW]
    under_way = [each for each in models if each.state in (State.STARTING, State.PARKING, State.WAKING)]
    kept = [each for each in models if each.can_leave and each.busy]
    if wanted and not under_way and not kept:
        assert found.begin or found.park or found.stuck


class Broken:
    name = "broken"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def leaves(self, *_: object) -> Sequence[str]:
        return self._said()

    def comes(self, *_: object) -> Sequence[str]:
        return self._said()

    def _said(self) -> Sequence[str]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize("answer", [["stranger"], ["old", "old"], None, RuntimeError("no")])
def test_a_policy_that_answers_nonsense_is_noted_and_lru_decides(answer):
    models = [
        view("new", last_used=9.0),
        view("old", last_used=1.0),
        view("want", State.PARKED, waiting=1, since=NOW),
    ]
    found = plan(models, 2 * GIB, Broken(answer), NOW)
    assert (found.park, found.broken) == (("old",), True)


# ---- single decisions -----------------------------------------------------------------------------------------------


def test_what_fits_begins_and_nothing_leaves():
    found = plan([view("in"), view("want", State.PARKED, waiting=1)], 2 * GIB, Lru(), NOW)
    assert found == Plan(begin=("want",))


def test_only_as_many_leave_as_must():
    models = [view("a", last_used=1.0), view("b", last_used=2.0), view("want", State.COLD, waiting=1)]
    assert plan(models, 2 * GIB, Lru(), NOW).park == ("a",)


def test_an_unknown_need_has_the_device_to_itself_but_for_pinned_models():
    models = [view("a"), view("pin", pinned=True), view("want", State.COLD, waiting=1, bytes=None)]
    assert plan(models, 9 * GIB, Lru(), NOW).park == ("a",)
    alone = [view("pin", pinned=True), view("want", State.COLD, waiting=1, bytes=None)]
    assert plan(alone, 9 * GIB, Lru(), NOW).begin == ("want",)


def test_a_busy_model_gets_no_new_requests_and_is_parked_after_its_last():
    want = view("want", State.PARKED, waiting=1)
    busy = plan([view("a", active=1), want], GIB, Lru(), NOW)
    assert (busy.park, busy.drain) == ((), frozenset({"a"}))
    over = plan([view("a", active=0, waiting=1), want], GIB, Lru(), NOW)
    assert over.park == ("a",)


def test_a_busy_model_keeps_its_room_for_a_moment():
    models = [view("a", active=1, held_until=NOW + 1), view("want", State.PARKED, waiting=1)]
    assert plan(models, GIB, Lru(), NOW) == Plan()
    assert plan(models, GIB, Lru(), NOW + 1).drain == {"a"}


def test_nothing_more_leaves_while_enough_is_leaving():
    models = [view("a", State.PARKING), view("b"), view("want", State.PARKED, waiting=1)]
    assert plan(models, 2 * GIB, Lru(), NOW) == Plan()


def test_no_room_beside_the_pinned_ones():
    models = [view("pin", pinned=True), view("want", State.PARKED, waiting=1)]
    assert plan(models, GIB, Lru(), NOW).stuck == ("want",)


def test_a_model_that_needs_more_than_there_is_begins_once_all_others_have_left():
    want = view("want", State.PARKED, waiting=1, bytes=3 * GIB)
    both = plan([view("a"), view("b", active=1), want], 2 * GIB, Lru(), NOW)
    assert (both.park, both.drain, both.begin, both.stuck) == (("a",), {"b"}, (), ())
    assert plan([view("a", State.PARKING), want], 2 * GIB, Lru(), NOW) == Plan()
    assert plan([view("a", State.PARKED), want], 2 * GIB, Lru(), NOW) == Plan(begin=("want",))


@pytest.mark.parametrize("pinned", [State.READY, State.PARKED])
def test_no_model_leaves_for_one_that_has_no_room_beside_the_pinned_ones(pinned):
    models = [
        view("pin", pinned, pinned=True, may_begin=2 * NOW),
        view("a"),
        view("want", State.PARKED, waiting=1, bytes=2 * GIB),
    ]
    assert plan(models, 2 * GIB, Lru(), NOW) == Plan(stuck=("want",))


def test_a_pinned_model_is_started_without_a_request():
    assert plan([view("pin", State.COLD, pinned=True)], GIB, Lru(), NOW).begin == ("pin",)


def test_where_the_device_said_no_another_one_leaves_though_the_count_says_there_is_room():
    models = [view("a"), view("want", State.PARKED, waiting=1, crowded=True)]
    assert plan(models, 9 * GIB, Lru(), NOW).park == ("a",)


def test_an_idle_model_is_parked_after_its_time():
    models = [view("a", idle=50.0, last_used=50.0), view("b", idle=50.0, last_used=50.1), view("c", last_used=0.0)]
    assert plan(models, None, Lru(), NOW).park == ("a",)


BRINGS = """
from gcr.hookspecs import hookimpl

class Newest:
    name = "newest"
    def leaves(self, candidates, demand, now): return [each.name for each in reversed(candidates)]
    def comes(self, waiting, now): return [each.name for each in waiting]

@hookimpl
def gcr_policies():
    return [Newest()]
"""


def test_a_plugin_brings_a_policy_and_a_broken_one_harms_none(tmp_path, monkeypatch):
    (tmp_path / "brings_a_policy.py").write_text(BRINGS)
    (tmp_path / "breaks.py").write_text("raise OSError")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GCR_PLUGINS", "breaks,brings_a_policy")
    found = policies.chosen("newest")
    assert found.leaves([Candidate(name="a"), Candidate(name="b")], Candidate(name="c"), 0.0) == ["b", "a"]
    with pytest.raises(BadServeConfig, match="newest"):
        policies.chosen("newst")


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ([], Next("b", GIB // 2)),
        ([view("c", State.PARKED, waiting=1, since=8.0)], Next("c", GIB // 2)),
        ([view("c", State.COLD, waiting=1, since=8.0)], None),  # it is to start, so all room is left to it
        ([view("c", State.PARKED, waiting=1, since=8.0, may_begin=NOW + 1)], Next("b", GIB // 2)),
        ([view("c", bytes=GIB // 2)], None),
        ([view("c", bytes=None)], None),
    ],
)
def test_the_model_that_comes_next_may_have_what_no_other_one_has(others: list[View], found: Next | None) -> None:
    models = [view("a", State.PARKING), view("b", State.PARKED, waiting=1, since=9.0), *others]
    assert next_in(models, GIB + GIB // 2, Lru(), NOW) == found


def test_no_model_comes_next_where_none_waits_the_room_is_not_known_or_the_device_has_refused_it() -> None:
    leaving = view("a", State.PARKING)
    waiting = view("b", State.PARKED, waiting=1, since=9.0)
    assert next_in([leaving, waiting], None, Lru(), NOW) is None
    assert next_in([leaving, view("b", State.PARKED)], 2 * GIB, Lru(), NOW) is None
    assert next_in([leaving, view("b", State.PARKED, waiting=1, crowded=True)], 2 * GIB, Lru(), NOW) is None
