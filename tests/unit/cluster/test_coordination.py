"""The coordinator's decisions, event by event."""

import random

import pytest
from decided import NODES, after, all_came, begun
from nodes_that_obey import CUT, Node, World

from gcr.api.barriers import Barrier
from gcr.cluster.coordination import Coordination, Phase, Task
from gcr.cluster.messages import (
    Ask,
    Begin,
    Came,
    Direct,
    Done,
    Event,
    Failed,
    Finish,
    GiveUp,
    Go,
    Late,
    Left,
    Lost,
    Obeyed,
    Outcome,
    Place,
    Restore,
    Stands,
    Stopped,
)
from gcr.standstill.messages import Lead, Report


def suspending() -> Coordination:
    coordination = begun()
    all_came(coordination, Barrier.ADMITTED)
    all_came(coordination, Barrier.STILL)
    return coordination


def test_every_node_is_admitted_before_any_goes_on():
    coordination = Coordination.of(Task.CHECKPOINT, CUT, NODES)
    assert [order for order in coordination.start() if isinstance(order, Begin)] == [Begin(node) for node in NODES]
    assert after(coordination, Came("a", Barrier.ADMITTED), Came("b", Barrier.ADMITTED)) == []
    assert after(coordination, Came("c", Barrier.ADMITTED)) == [Go(node, Barrier.ADMITTED) for node in NODES]


def test_every_node_stands_still_before_any_hands_over():
    coordination = begun()
    all_came(coordination, Barrier.ADMITTED)
    assert after(coordination, Came("b", Barrier.STILL), Came("a", Barrier.STILL)) == []
    assert after(coordination, Came("c", Barrier.STILL)) == [Go(node, Barrier.STILL) for node in NODES]


def apart() -> Coordination:
    """Ranks of b have not come to rest by themselves."""
    coordination = begun()
    all_came(coordination, Barrier.ADMITTED)
    assert after(coordination, Came("a", Barrier.STILL), Came("b", Barrier.APART)) == []
    return coordination


def at_rest(number: int, *nodes: str) -> list[Event]:
    return [Obeyed(node, number, 1.0, (Report(7, 0, False, 0, 0, -1.0),)) for node in nodes]


def test_where_one_node_does_not_stand_still_by_itself_all_are_led_and_come_to_the_standstill_again():
    coordination = apart()
    assert after(coordination, Came("c", Barrier.STILL)) == [Direct(node, 1, 0.0, Lead()) for node in NODES]
    assert after(coordination, Came("a", Barrier.STILL)) == []  # told again
    assert after(coordination, *at_rest(1, *NODES)) == [Go(node, Barrier.APART) for node in NODES]
    assert after(coordination, Came("b", Barrier.APART)) == [Go("b", Barrier.APART)]  # it has not heard of it
    assert all_came(coordination, Barrier.STILL) == [Go(node, Barrier.STILL) for node in NODES]


def test_a_node_that_fails_while_all_are_led_has_all_run_on():
    coordination = apart()
    after(coordination, Came("c", Barrier.STILL), *at_rest(1, "a"))
    assert after(coordination, Failed("b", Left.TAKEN_BACK)) == [GiveUp("a", CUT), GiveUp("c", CUT)]
    assert after(coordination, *at_rest(1, "b", "c")) == []  # their answers were on their way


def test_a_standstill_that_comes_too_late_has_all_run_on():
    coordination = apart()
    after(coordination, Came("c", Barrier.STILL), *at_rest(1, "a", "c"))
    assert after(coordination, Late(2)) == [GiveUp(node, CUT) for node in NODES]


def test_it_is_done_once_every_node_is_suspended():
    coordination = suspending()
    assert after(coordination, Done("a"), Done("b")) == []
    assert after(coordination, Done("c")) == [Finish(Outcome.DONE)]


def test_a_refusal_on_one_node_leaves_all_untouched():
    coordination = begun()
    orders = after(coordination, Came("a", Barrier.ADMITTED), Failed("b", Left.REFUSED))
    assert orders == [GiveUp("a", CUT), GiveUp("c", CUT)]
    assert after(coordination, Failed("a", Left.TAKEN_BACK), Failed("c", Left.TAKEN_BACK)) == [Finish(Outcome.REFUSED)]


def test_a_node_that_refuses_since_another_caller_has_suspended_it_is_left_so():
    coordination = begun()
    after(coordination, Failed("a", Left.REFUSED), Failed("b", Left.TAKEN_BACK))
    assert after(coordination, Failed("c", Left.TAKEN_BACK)) == [Finish(Outcome.REFUSED)]
    assert coordination.places.by_node["a"] is Place.AS_BEFORE


def test_a_node_that_fails_after_the_standstill_has_the_suspended_ones_restored():
    coordination = suspending()
    after(coordination, Done("a"))
    assert after(coordination, Failed("b")) == [Ask("b")]
    assert after(coordination, Stands("b", Place.RUNNING)) == [GiveUp("c", CUT), Restore("a")]
    assert after(coordination, Done("c")) == [Restore("c")]
    assert after(coordination, Done("a"), Done("c")) == [Finish(Outcome.TAKEN_BACK)]


def test_a_daemon_that_died_after_its_decision_does_not_undo_the_cut():
    coordination = suspending()
    after(coordination, Done("a"), Done("b"))
    assert after(coordination, Lost("c")) == [Ask("c")]
    assert after(coordination, Stands("c", Place.SUSPENDED, CUT)) == [Finish(Outcome.DONE)]


def test_a_part_that_another_command_has_suspended_is_of_another_cut():
    coordination = suspending()
    after(coordination, Done("a"), Done("b"), Lost("c"))
    orders = after(coordination, Stands("c", Place.SUSPENDED, "d" * 32))
    assert {Restore(node) for node in NODES} == {*orders}


def test_a_go_that_was_not_heard_is_said_again():
    coordination = begun()
    all_came(coordination, Barrier.ADMITTED)
    assert after(coordination, Came("a", Barrier.ADMITTED)) == [Go("a", Barrier.ADMITTED)]


def test_a_deadline_that_is_over_means_nothing():
    coordination = begun()
    all_came(coordination, Barrier.ADMITTED)
    assert after(coordination, Late(1)) == []
    assert after(coordination, Late(2)) == [GiveUp(node, CUT) for node in NODES]


def test_a_node_that_never_answers_is_named_as_silent():
    coordination = begun()
    after(coordination, Came("a", Barrier.ADMITTED), Came("b", Barrier.ADMITTED), Late(1))
    after(coordination, Failed("a", Left.TAKEN_BACK), Failed("b", Left.TAKEN_BACK))
    assert after(coordination, Late(2)) == [Finish(Outcome.UNSETTLED)]
    assert coordination.places.by_node["c"] is Place.SILENT


def test_its_caller_may_give_up():
    coordination = begun()
    after(coordination, Stopped())
    assert after(coordination, *(Failed(node, Left.TAKEN_BACK) for node in NODES)) == [Finish(Outcome.REFUSED)]


def answers(coordination: Coordination, *cuts: str | None) -> list[object]:
    """A cut is that of a suspended node, None one that runs."""
    stands = [
        Stands(node, Place.RUNNING) if cut is None else Stands(node, Place.SUSPENDED, cut)
        for node, cut in zip(NODES, cuts, strict=True)
    ]
    return after(coordination, *stands)


def test_a_restore_begins_where_every_node_is_suspended_by_one_cut():
    assert answers(begun(Task.RESTORE), "x", "x", "x") == [Begin(node) for node in NODES]
    assert answers(begun(Task.RESTORE), "", "", "") == [Begin(node) for node in NODES]


@pytest.mark.parametrize("cuts", [("x", "x", None), ("x", "x", "y"), ("x", "", "x"), (None, None, None)])
def test_a_restore_of_a_mix_is_refused(cuts: tuple[str | None, ...]):
    assert answers(begun(Task.RESTORE), *cuts) == [Finish(Outcome.REFUSED)]


def restoring() -> Coordination:
    coordination = begun(Task.RESTORE)
    answers(coordination, "x", "x", "x")
    return coordination


def test_a_restore_that_fails_on_one_node_leaves_all_suspended():
    coordination = restoring()
    after(coordination, Came("a", Barrier.READY))
    assert after(coordination, Failed("b")) == [Ask("b"), GiveUp("a", CUT), GiveUp("c", CUT)]
    assert after(coordination, Stands("b", Place.SUSPENDED, "x"), Failed("a", Left.TAKEN_BACK)) == []
    assert after(coordination, Failed("c", Left.TAKEN_BACK)) == [Finish(Outcome.TAKEN_BACK)]


def test_a_restore_that_fails_once_others_run_is_tried_again():
    coordination = restoring()
    all_came(coordination, Barrier.READY)
    after(coordination, Done("a"), Done("b"), Failed("c"))
    assert after(coordination, Stands("c", Place.SUSPENDED, "x")) == [Restore("c")]
    assert after(coordination, Done("c")) == [Finish(Outcome.DONE)]


def test_where_one_node_runs_by_itself_all_others_are_brought_back_too():
    """It has not waited for the others, and its part cannot be suspended again as it was."""
    coordination = restoring()
    assert after(coordination, Done("a")) == [GiveUp("b", CUT), GiveUp("c", CUT)]
    assert after(coordination, Failed("b", Left.TAKEN_BACK)) == [Restore("b")]
    assert after(coordination, Failed("c", Left.TAKEN_BACK), Done("b"), Done("c")) == [Finish(Outcome.DONE)]


def test_a_node_that_refused_its_restore_is_asked_again_where_others_run():
    coordination = restoring()
    after(coordination, Failed("a", Left.REFUSED))
    assert {Restore("a"), Restore("c")} == {*after(coordination, Failed("c", Left.TAKEN_BACK), Done("b"))}


@pytest.mark.parametrize(
    ("cuts", "orders"),
    [
        (("x", "x", "x"), [Finish(Outcome.DONE)]),
        ((None, None, None), [Finish(Outcome.DONE)]),
        (("x", None, "x"), [Restore("a"), Restore("c")]),
        (("x", "x", "y"), [Restore("a"), Restore("b"), Restore("c")]),
    ],
)
def test_a_recovery_leaves_a_whole_cut_and_has_any_mix_run(cuts: tuple[str | None, ...], orders: list[object]):
    assert answers(begun(Task.RECOVER), *cuts) == orders


def test_a_recovery_touches_nothing_where_the_cut_may_stand():
    coordination = begun(Task.RECOVER)
    after(coordination, Stands("a", Place.SUSPENDED, "x"), Stands("b", Place.SUSPENDED, "x"))
    assert after(coordination, Late(1)) == [Finish(Outcome.UNSETTLED)]


def test_a_recovery_gives_up_what_waits_at_a_barrier():
    coordination = begun(Task.RECOVER)
    assert after(coordination, Stands("a", Place.HELD, "y")) == [GiveUp("a", "y"), Ask("a")]


def test_messages_of_a_node_do_not_grow_with_the_number_of_nodes():
    for number in (10, 1000):
        world = World.of(random.Random(1), Task.CHECKPOINT, [Node(str(n)) for n in range(number)], 0.0)
        assert world.run(most=1000 * number) is Outcome.DONE
        assert world.messages < 10 * number


def test_it_says_nothing_once_it_is_over():
    coordination = begun()
    after(coordination, Stopped(), *(Failed(node, Left.TAKEN_BACK) for node in NODES))
    assert coordination.phase is Phase.OVER
    assert coordination.on(Came("a", Barrier.ADMITTED)) == []
