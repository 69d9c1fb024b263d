"""One standstill for ranks on several nodes, over the model of ranks: the coordinator decides as one machine does.

`ranks` checks each admission, of a node by itself or by order, against the calls that the enqueued ones need.
"""

import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from across import Across
from programs import SHAPES, collective, random_program, threads
from ranks import Call, Job

from gcr.cluster.messages import Obeyed
from gcr.cluster.standstill import LONGEST_PAUSE_S, MOST_ORDERS, Stage, Standstill
from gcr.errors import UsageError
from gcr.standstill.messages import Admission, Incomplete, Lead, Parked, Report, Tier

SEEDS = st.integers(0, 1 << 48)


def stopped(seed: int, collide: bool = False, names: bool = True) -> Across:
    """A random program over two to four nodes, stopped somewhere."""
    rng = Random(seed)
    program = random_program(rng)
    for call in (item for thread in program for item in thread.program if isinstance(item, Call)):
        call.signature = min(call.signature, 1) if collide else call.signature
    job = Job(program, names)
    job.exact = names and not collide
    job.run_free(rng, rng.randrange(30))
    across = Across.of(job, rng, rng.randrange(2, len(job.ranks) + 1))
    assert across.stand_still()
    assert not any(map(job.busy, job.ranks)), "still, and a device works"
    assert across.together.orders < MOST_ORDERS
    return across


@settings(max_examples=400)
@given(SEEDS)
def test_random_programs_come_to_one_standstill_and_nothing_is_admitted_outside_the_closure(seed):
    stopped(seed)


@settings(max_examples=100)
@given(SEEDS, st.booleans())
def test_they_do_so_without_signatures_and_with_those_that_mean_several_communicators(seed, names):
    stopped(seed, collide=names, names=names)


def test_many_of_them_need_each_other():
    """Guards the tests above: most standstills would come by themselves otherwise."""
    found = [stopped(seed) for seed in range(100)]
    assert sum(bool(across.together.number) for across in found) > 30
    for tier in (Tier.PARTNER, Tier.WALK, Tier.LEAD):
        assert sum(tier in across.led for across in found) > 3, tier


@pytest.mark.parametrize("shape", SHAPES)
def test_six_shapes_of_programs_come_to_a_standstill(shape):
    for seed in range(2):
        rng = Random(seed)
        job = Job(shape(rng, 4, 8, bool(seed % 2), 0.003))
        job.run_free(rng, rng.randrange(1600))
        assert Across.of(job, rng, 2).stand_still(20.0)


# ---- what the coordinator says ------------------------------------------------------------------------------------

SUM = 9
WAITS = Report(70, 0, True, 0, 0, -1.0, incomplete=(Incomplete(SUM, 0x10, 3, "reduce"),))
BEHIND = Report(70, 0, False, 0, 0, -1.0, parked=(Parked(5, SUM, launched=2),))
AT_REST = Report(70, 0, False, 0, 0, -1.0)


def answered(together: Standstill, at: float, **ranks: Report) -> list:
    """Gives each node's answer, and returns the orders that follow from the last. A pid is the same on every node."""
    orders: list = []
    for node, report in ranks.items():
        assert orders == []
        orders = together.on(Obeyed(node, together.orders, at, (report,)))
    return orders


def begun() -> Standstill:
    together = Standstill(["a", "b"])
    together.want()
    assert [(each.node, each.lead) for each in together.begin()] == [("a", Lead()), ("b", Lead())]
    return together


def test_a_call_is_admitted_on_the_node_that_has_it_and_then_all_look_again():
    together = begun()
    (order,) = answered(together, 5.0, a=WAITS, b=BEHIND)
    assert (order.node, order.lead.furthest) == ("b", ((SUM, 3),))
    assert order.lead.admissions == (Admission(Tier.PARTNER, 70, 5, SUM, 64),)
    looks = together.on(Obeyed("b", order.number, 5.1))
    assert [(each.node, each.lead) for each in looks] == [("a", Lead()), ("b", Lead())]
    assert answered(together, 5.2, a=AT_REST, b=AT_REST) == []
    assert together.is_still


def test_ranks_at_rest_before_the_last_admission_prove_nothing():
    together = begun()
    (order,) = answered(together, 5.0, a=WAITS, b=BEHIND)
    for node in ("a", "b"):  # answers to the look before
        assert together.on(Obeyed(node, order.number - 1, 5.1, (AT_REST,))) == []
    assert not together.is_still
    assert len(together.on(Obeyed("b", order.number, 5.2))) == 2


def test_a_kernel_that_waits_for_its_own_process_is_given_more_calls_each_time():
    together, now, calls = begun(), 5.0, []
    spins = Report(70, 0, True, 0, 0, -1.0, parked=(Parked(5, clear=False),))
    for _ in range(4):
        (order,) = answered(together, now, a=spins, b=AT_REST)
        calls += [each.calls for each in order.lead.admissions]
        together.on(Obeyed("a", order.number, now))
        now += 1.0
    assert calls == [1, 2, 4, 8]


def test_looks_come_at_ever_longer_pauses_while_nothing_leads_on():
    together, now, pauses = begun(), 5.0, []
    for _ in range(9):
        orders = answered(together, now, a=WAITS, b=AT_REST)
        assert [each.lead for each in orders] == [Lead(), Lead()]
        pauses.append(orders[0].at - now)
        now = orders[0].at
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_S)


def test_a_capture_anywhere_opens_all_gates_until_none_is_left():
    together = begun()
    capturing = Report(70, 0, False, 0, 1, 0.0)
    opened = answered(together, 5.0, a=capturing, b=AT_REST)
    assert [each.lead for each in opened] == [Lead(closed=False)] * 2
    again = answered(together, 5.1, a=capturing, b=AT_REST)
    assert [each.lead for each in again] == [Lead(closed=False)] * 2
    assert [each.lead for each in answered(together, 5.2, a=AT_REST, b=AT_REST)] == [Lead()] * 2
    assert not together.is_still
    answered(together, 5.3, a=AT_REST, b=AT_REST)
    assert together.is_still


def test_it_names_the_ranks_that_wait_with_their_nodes():
    together = begun()
    answered(together, 5.0, a=WAITS, b=AT_REST)
    assert together.cause == (
        "process 70 of node a waits in reduce on stream 0x10; process 70 of node b is in its own code"
    )


def test_it_ends_after_so_many_orders():
    together, now = begun(), 5.0
    for _ in range(MOST_ORDERS):
        now += 1.0
        answered(together, now, a=WAITS, b=AT_REST)
    assert together.stage is Stage.GIVEN_UP


# ---- what a node does by itself, and by order ---------------------------------------------------------------------


def pair(local: bool) -> Across:
    """Rank 0 waits in a collective with rank 1, which has a local call before its part. `local`: they share a node.

    Rank 0 would begin another one with rank 2 next.
    """
    lines: dict = {(0, 0): [], (1, 0): [Call("main")], (2, 0): []}
    collective(lines, (0, 1), 0, "comm", 0.0001, 9)
    collective(lines, (0, 2), 0, "side", 0.0001, 7)
    job = Job(threads(lines))
    job.step(job.threads[0])
    across = Across.of(job, Random(1), 1 if local else 3)
    job.close()
    return across


def test_what_a_node_can_do_by_itself_takes_no_order():
    across = pair(local=True)
    assert across.alone()
    assert across.job.admitted_coupled == 1


def test_nothing_is_admitted_that_only_another_node_may_need():
    across = pair(local=False)
    assert not across.alone()
    assert across.job.admitted == 0
    assert across.stand_still()
    assert (across.job.admitted, across.job.admitted_coupled) == (2, 1)


def test_an_order_for_a_stranger_is_refused_before_anything_is_done():
    across = pair(local=False)
    led = across.nodes["n0"]
    with pytest.raises(UsageError, match="process 77 takes no part"):
        led.obey(Lead(admissions=(Admission(Tier.WALK, 77, 1, 0),)))
    assert across.job.admitted == 0
