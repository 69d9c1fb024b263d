"""The decision about a standstill, tier by tier: what it admits from reports made by hand, and when it waits."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gcr.standstill.decision import Admit, Done, Late, Past, ReleaseCaptures, Rules, Wait, decide, owes
from gcr.standstill.messages import LOCAL, Admission, Incomplete, Made, Parked, Report, Tier

RULES = Rules()
SUM, GATHER = 7, 8  # signatures
LONG_AGO, NOW = 0.0, 10.0
PAST = Past(deadline=60.0)


def at_gate(thread: int = 0, signature: int = LOCAL, **more: Any) -> Parked:
    return Parked(thread, signature, **more)


def waits_in(*signatures: int) -> dict[str, Any]:
    """A rank that waits in its first calls of these signatures."""
    return {"busy": True, "incomplete": tuple(Incomplete(each, 0x10, 1, f"kernel{each}") for each in signatures)}


def rank(number: int, *parked: Parked, busy: bool = False, **more: Any) -> Report:
    facts: dict[str, Any] = {"look": 1, "in_flight": 0, "captures": 0, "changed_at": LONG_AGO, **more}
    return Report(rank=number, busy=busy, parked=parked, **facts)


def admitted(*reports: Report, past: Past = PAST) -> list[tuple[Tier, int, int, int]]:
    step = decide(reports, past, NOW)
    assert isinstance(step, Admit), step
    return [(each.tier, each.rank, each.thread, each.calls) for each in step.admissions]


# ---- the end ------------------------------------------------------------------------------------------------------


def test_ranks_at_rest_stand_still_whatever_waits_at_their_gates():
    assert decide([rank(1, at_gate()), rank(2, at_gate(0, SUM))], PAST, NOW) == Done()


@pytest.mark.parametrize("unrest", [{"busy": True}, {"in_flight": 1}, {"captures": 1}])
def test_one_rank_that_is_not_at_rest_is_enough(unrest):
    assert decide([rank(1), rank(2, **unrest)], PAST, NOW) != Done()


def test_reports_from_before_the_last_admission_say_nothing():
    old, new = rank(1), replace(rank(2), look=2)
    past = PAST.after(Admit((Admission(Tier.WALK, 2, 0, LOCAL),)), [old], NOW)
    assert decide([old, new], past, NOW) == Wait(NOW)
    assert decide([replace(old, look=2), new], past, NOW) == Done()


def test_the_deadline_names_kernel_and_stream_and_who_is_absent():
    reports = [rank(41, **waits_in(SUM)), rank(42), rank(43, in_flight=2), rank(44, at_gate()), rank(45, busy=True)]
    step = decide(reports, PAST, 60.0)
    assert isinstance(step, Late)
    assert str(step.cause) == (
        "process 41 waits in kernel7 on stream 0x10; process 43 has calls in its driver; "
        "the device of process 45 is busy; process 42 is in its own code"
    )


def test_ranks_at_rest_at_the_deadline_stand_still_all_the_same():
    assert decide([rank(1), rank(2)], PAST, 61.0) == Done()


# ---- what is admitted, in this order ------------------------------------------------------------------------------


def test_a_rank_that_is_behind_makes_the_call_that_the_other_waits_in():
    assert admitted(rank(1, **waits_in(SUM)), rank(2, at_gate(3, SUM))) == [(Tier.PARTNER, 2, 3, RULES.batch)]


def test_a_rank_that_has_made_as_many_calls_does_not_make_the_next():
    ahead, third = rank(1, at_gate(0, SUM, launched=1), **waits_in(SUM)), rank(3, at_gate(1, SUM))
    assert admitted(ahead, rank(2, at_gate(0, SUM, launched=1)), third) == [(Tier.PARTNER, 3, 1, RULES.batch)]


def test_of_two_threads_with_the_same_call_one_makes_it():
    behind = rank(2, at_gate(4, SUM), at_gate(5, SUM))
    assert admitted(rank(1, **waits_in(SUM)), behind) == [(Tier.PARTNER, 2, 4, RULES.batch)]


def test_local_calls_before_it_are_walked():
    behind = rank(2, at_gate(0), at_gate(1, GATHER), at_gate(2, clear=False))
    assert admitted(rank(1, **waits_in(SUM)), behind) == [(Tier.WALK, 2, 0, 16)]


def test_a_walk_that_leads_nowhere_goes_further_and_a_partner_ends_that():
    reports = [rank(1, **waits_in(SUM)), rank(2, at_gate(0))]
    past, seen = PAST, []
    for _ in range(8):
        step = decide(reports, past, NOW)
        assert isinstance(step, Admit)
        seen.append(step.admissions[0].calls)
        reports = [replace(each, look=each.look + 1) for each in reports]
        past = replace(past.after(step, reports, LONG_AGO), admitted=0)
    assert seen == [16, 32, 64, 128, 256, 512, 1024, 1024]
    partner = Admit((Admission(Tier.PARTNER, 2, 0, SUM),))
    assert admitted(*reports, past=replace(past.after(partner, reports, LONG_AGO), admitted=0)) == [
        (Tier.WALK, 2, 0, 16)
    ]


def test_another_collective_is_begun_only_where_nothing_else_leads_on():
    first, second = rank(2, at_gate(0, GATHER)), rank(3, at_gate(1, GATHER))
    assert admitted(rank(1, **waits_in(SUM)), first, second) == [(Tier.LEAD, 2, 0, 1)]
    served = Admit((Admission(Tier.PARTNER, 3, 1, SUM),))
    past = replace(PAST.after(served, [first], LONG_AGO), admitted=0)
    assert admitted(rank(1, **waits_in(SUM)), first, second, past=past) == [(Tier.LEAD, 3, 1, 1)]


def test_a_batch_says_how_many_calls_of_each_signature_are_needed():
    ahead = rank(1, busy=True, incomplete=(Incomplete(SUM, 0x10, 7), Incomplete(GATHER, 0x20, 2)))
    step = decide([ahead, rank(2, at_gate(3, SUM), incomplete=(Incomplete(SUM, 0x10, 5),))], PAST, NOW)
    assert isinstance(step, Admit)
    assert step.furthest == {SUM: 7, GATHER: 2}


def test_batches_are_ever_longer():
    reports, past, seen = [rank(1, **waits_in(SUM)), rank(2, at_gate(0, SUM))], PAST, []
    for _ in range(6):
        step = decide(reports, past, NOW)
        assert isinstance(step, Admit)
        seen.append(step.admissions[0].calls)
        past = replace(past.after(step, reports, LONG_AGO), admitted=0)
    assert seen == [64, 128, 256, 512, 1024, 1024]


ONE, SEVERAL = Made(SUM, 1, 5), Made(SUM, 1, None)
AHEAD = rank(1, busy=True, incomplete=(Incomplete(SUM, 0x10, 2),))


def test_local_calls_of_a_thread_that_owes_another_are_walked_though_they_are_not_clear():
    waits = at_gate(5, clear=False)
    assert admitted(AHEAD, rank(2, waits, made=(ONE,))) == [(Tier.WALK, 2, 5, RULES.batch)]
    both = rank(2, at_gate(5), at_gate(6), made=(ONE,))
    assert admitted(AHEAD, both) == [(Tier.WALK, 2, 5, RULES.batch), (Tier.WALK, 2, 6, RULES.walk)]
    assert admitted(AHEAD, rank(2, waits, made=(SEVERAL,))) == [(Tier.SPIN, 2, 5, 1)]
    assert admitted(AHEAD, rank(2, waits, made=(Made(SUM, 2, 5),))) == [(Tier.SPIN, 2, 5, 1)]


def test_a_thread_that_owes_a_call_leads_through_the_coupled_calls_before_it():
    """Every rank's does; of other threads one alone makes one call."""
    behind = [rank(number, at_gate(5, GATHER, clear=False), made=(ONE,)) for number in (2, 3)]
    step = decide([AHEAD, *behind], PAST, NOW)
    assert isinstance(step, Admit)
    expected = [Admission(Tier.LEAD, number, 5, GATHER, RULES.batch, leads=True) for number in (2, 3)]
    assert [*step.admissions] == expected
    assert admitted(AHEAD, rank(2, at_gate(5, GATHER), made=(SEVERAL,))) == [(Tier.LEAD, 2, 5, 1)]


def test_a_rank_that_waits_for_itself_makes_local_calls_first():
    spins = rank(1, at_gate(0, SUM, clear=False), at_gate(1, clear=False), busy=True)
    assert admitted(spins) == [(Tier.SPIN, 1, 1, 1)]
    assert admitted(rank(1, at_gate(0, SUM, clear=False), busy=True)) == [(Tier.SPIN, 1, 0, 1)]


def test_it_makes_twice_as_many_each_time():
    spins, past, seen = rank(1, at_gate(1, clear=False), busy=True), PAST, []
    for _ in range(8):
        step = decide([spins], past, NOW)
        assert isinstance(step, Admit)
        seen.append(step.admissions[0].calls)
        past = replace(past.after(step, [spins], NOW), admitted=0)
    assert seen == [1, 2, 4, 8, 16, 32, 64, 64]


def test_threads_of_a_library_pass_while_a_device_is_busy_beside_what_else_is_admitted():
    helper, behind = rank(1, at_gate(9, helper=True), **waits_in(SUM)), rank(2, at_gate(0, SUM))
    assert admitted(helper, behind) == [(Tier.HELPER, 1, 9, 64), (Tier.PARTNER, 2, 0, RULES.batch)]
    changing = rank(2, at_gate(0, GATHER), changed_at=NOW)
    assert admitted(helper, changing) == [(Tier.HELPER, 1, 9, 64)]
    idle = rank(1, at_gate(9, helper=True), in_flight=1)
    assert isinstance(decide([idle, rank(2)], PAST, NOW), Wait)


# ---- captures -----------------------------------------------------------------------------------------------------


def test_a_capture_opens_all_gates():
    assert decide([rank(1, at_gate(), **waits_in(SUM)), rank(2, captures=1)], PAST, NOW) == ReleaseCaptures()


def test_a_thread_that_would_begin_one_opens_them_only_where_nothing_else_leads_on():
    held, behind = rank(2, held=1), rank(3, at_gate(0))
    assert admitted(rank(1, **waits_in(SUM)), held, behind) == [(Tier.WALK, 3, 0, 16)]
    assert decide([rank(1, **waits_in(SUM)), held], PAST, NOW) == ReleaseCaptures()


# ---- when ---------------------------------------------------------------------------------------------------------


def test_a_call_that_another_rank_waits_in_is_admitted_at_once():
    reports = [rank(1, changed_at=NOW, **waits_in(SUM)), rank(2, at_gate(0, SUM))]
    assert admitted(*reports) == [(Tier.PARTNER, 2, 0, RULES.batch)]


@pytest.mark.parametrize(
    ("call", "tier", "wait"), [(at_gate(), Tier.WALK, RULES.settle), (at_gate(0, GATHER), Tier.LEAD, RULES.still)]
)
def test_a_call_that_leads_there_waits_until_nothing_changes(call: Parked, tier: Tier, wait: float):
    reports = [rank(1, changed_at=NOW, **waits_in(SUM)), rank(2, call)]
    assert decide(reports, PAST, NOW) == Wait(NOW + RULES.settle)
    step = decide(reports, PAST, NOW + wait)
    assert isinstance(step, Admit)
    assert step.tier == tier
    assert wait == RULES.settle or decide(reports, PAST, NOW + RULES.settle) == Wait(NOW + RULES.still)


def test_what_an_admission_changed_itself_is_waited_for_only_shortly():
    reports = [rank(1, changed_at=NOW, **waits_in(SUM)), rank(2, at_gate(0, GATHER))]
    past = replace(PAST, settled=NOW)
    assert decide(reports, past, NOW) == Wait(NOW + RULES.settle)
    assert isinstance(decide(reports, past, NOW + RULES.settle), Admit)


def test_without_signatures_the_wait_is_longer_and_only_idle_ranks_walk():
    busy, idle = rank(1, at_gate(0), busy=True, changed_at=NOW), rank(2, at_gate(5))
    assert decide([busy, idle], PAST, NOW) == Wait(NOW + RULES.blind_still)
    assert isinstance(decide([busy, idle], PAST, NOW + RULES.still), Wait)
    assert admitted(replace(busy, changed_at=LONG_AGO), idle) == [(Tier.WALK, 2, 5, 1)]


def test_a_front_that_moves_for_local_kernels_makes_the_wait_longer():
    past = PAST
    for turn in range(9):
        one = rank(1 + turn % 2, busy=True)
        past = past.after(Admit((Admission(Tier.WALK, 3, 0, LOCAL),)), [one], LONG_AGO)
    reports = [rank(1, busy=True, changed_at=NOW, look=2), rank(2, at_gate(), look=2)]
    assert decide(reports, past, NOW) == Wait(NOW + 4 * RULES.blind_still)


def test_where_nobody_is_at_the_gate_somebody_is_in_its_own_code():
    assert decide([rank(1, **waits_in(SUM)), rank(2)], PAST, NOW) == Wait(NOW + RULES.look)


# ---- of any reports -----------------------------------------------------------------------------------------------

signatures = st.sampled_from((LOCAL, LOCAL, SUM, GATHER))
parked = st.builds(Parked, st.integers(0, 3), signatures, st.booleans(), st.booleans(), st.integers(0, 2))
places = st.lists(parked, max_size=3, unique_by=lambda one: one.thread).map(tuple)
launches = st.lists(st.sampled_from((SUM, GATHER)), max_size=2, unique=True).map(
    lambda names: tuple(Incomplete(each, 1, 1) for each in names)
)
made = st.lists(
    st.builds(Made, st.sampled_from((SUM, GATHER)), st.integers(0, 1), st.none() | st.integers(0, 3)),
    max_size=2,
    unique_by=lambda one: one.signature,
).map(tuple)
reports = st.lists(
    st.builds(
        Report,
        rank=st.integers(1, 4),
        look=st.integers(1, 3),
        busy=st.booleans(),
        in_flight=st.integers(0, 1),
        captures=st.sampled_from((0, 0, 0, 1)),
        changed_at=st.sampled_from((LONG_AGO, NOW)),
        parked=places,
        incomplete=launches,
        held=st.sampled_from((0, 0, 1)),
        made=made,
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda one: one.rank,
)
pasts = st.builds(
    Past,
    deadline=st.sampled_from((NOW - 1, NOW + 50)),
    admitted=st.integers(0, 2),
    settled=st.sampled_from((LONG_AGO, NOW)),
    walk=st.integers(0, 12),
    spin=st.sampled_from((1, 2, 128)),
    served=st.none() | st.tuples(st.integers(1, 4), st.integers(0, 3)),
)


@given(reports, pasts)
def test_whatever_is_reported_the_decision_keeps_its_promises(seen, past):
    step = decide(seen, past, NOW)
    fresh = all(one.look > past.admitted for one in seen)
    assert isinstance(step, Done) == (fresh and all(one.at_rest for one in seen))
    assert isinstance(step, Late) == (past.deadline < NOW and not isinstance(step, Done))
    if isinstance(step, Wait):
        assert step.until >= NOW
    if isinstance(step, Admit):
        assert fresh
        assert not any(one.captures for one in seen)
        check_admissions(seen, step)
        assert past.after(step, seen, NOW).admitted == max(one.look for one in seen)


def check_admissions(seen: list[Report], step: Admit) -> None:
    by_rank = {one.rank: one for one in seen}
    assert len({(one.rank, one.thread) for one in step.admissions}) == len(step.admissions)
    assert len({one.tier for one in step.admissions} - {Tier.HELPER}) <= 1
    waiting = [each for other in seen for each in other.incomplete]
    assert dict(step.furthest) == {each.signature: 1 for each in waiting}
    for one in step.admissions:
        place = next(each for each in by_rank[one.rank].parked if each.thread == one.thread)
        assert (place.signature, place.helper) == (one.signature, one.tier == Tier.HELPER)
        assert 1 <= one.calls <= RULES.longest_walk
        if one.tier == Tier.PARTNER:
            waited_in = {each.signature for other in seen for each in other.incomplete}
            assert one.signature in waited_in
            assert place.launched == 0
        elif one.tier == Tier.WALK:
            assert (place.clear or owes(by_rank[one.rank], place, step.furthest)) and one.signature == LOCAL
        elif one.tier == Tier.LEAD:
            assert one.leads == owes(by_rank[one.rank], place, step.furthest)
            assert one.leads or (place.clear and one.calls == 1)
