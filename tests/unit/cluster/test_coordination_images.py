"""The coordinator's decisions on an image over nodes: it counts once every store has the list of all parts."""

from decided import NODES, TO_KEEP, TO_RUN_ON, TO_STOP, after, all_came, begun
from nodes_that_obey import CUT

from gcr.api.barriers import Barrier
from gcr.cluster.coordination import Aim, Coordination, Task
from gcr.cluster.messages import (
    Ask,
    Begin,
    Came,
    Done,
    Failed,
    Finish,
    GiveUp,
    Go,
    Keep,
    Kept,
    Late,
    Left,
    Lost,
    Outcome,
    Place,
    Restore,
    Stands,
)


def durable(aim: Aim = TO_STOP) -> Coordination:
    """Returns one whose nodes all stand still, and write their images."""
    coordination = Coordination.of(Task.CHECKPOINT, CUT, NODES, aim)
    coordination.start()
    all_came(coordination, Barrier.ADMITTED)
    all_came(coordination, Barrier.STILL)
    return coordination


def test_no_image_counts_before_all_are_durable_and_every_store_has_their_list():
    coordination = durable()
    assert after(coordination, Came("a", Barrier.DURABLE), Came("c", Barrier.DURABLE)) == []
    assert after(coordination, Came("b", Barrier.DURABLE)) == [Keep(node) for node in NODES]
    assert after(coordination, Came("b", Barrier.DURABLE), Kept("a"), Kept("a"), Kept("b")) == []
    assert after(coordination, Kept("c")) == [Go(node, Barrier.DURABLE) for node in NODES]
    assert after(coordination, Done("a"), Done("b"), Done("c")) == [Finish(Outcome.DONE)]
    assert {*coordination.places.by_node.values()} == {Place.STOPPED}


def test_a_store_that_does_not_take_the_list_has_all_run_on():
    coordination = durable()
    all_came(coordination, Barrier.DURABLE)
    assert after(coordination, Kept("a"), Failed("b")) == [Ask("b"), GiveUp("a", CUT), GiveUp("c", CUT)]


def test_a_list_that_is_not_written_in_time_has_all_run_on():
    coordination = durable()
    all_came(coordination, Barrier.DURABLE)
    assert after(coordination, Kept("a"), Late(4)) == [GiveUp(node, CUT) for node in NODES]


def test_a_daemon_that_dies_before_it_ends_its_processes_does_not_undo_the_image():
    coordination = durable()
    all_came(coordination, Barrier.DURABLE)
    after(coordination, Kept("a"), Kept("b"), Kept("c"), Done("a"), Done("b"), Lost("c"))
    assert after(coordination, Stands("c", Place.SUSPENDED, CUT)) == [Finish(Outcome.DONE)]


def test_a_part_that_ran_on_after_the_last_go_has_those_that_were_stopped_made_again():
    coordination = durable()
    all_came(coordination, Barrier.DURABLE)
    after(coordination, Kept("a"), Kept("b"), Kept("c"), Done("a"), Done("b"), Failed("c"))
    orders = after(coordination, Stands("c", Place.RUNNING))
    assert orders == [Restore("a", revives=True), Restore("b", revives=True)]


def test_a_job_that_is_to_run_on_is_brought_back_where_its_daemon_died():
    coordination = durable(TO_RUN_ON)
    all_came(coordination, Barrier.DURABLE)
    after(coordination, Kept("a"), Kept("b"), Kept("c"), Done("a"), Lost("b"))
    assert after(coordination, Stands("b", Place.SUSPENDED, CUT)) == [Restore("b")]
    assert after(coordination, Done("b"), Done("c")) == [Finish(Outcome.DONE)]


def test_stopped_and_suspended_parts_of_one_cut_come_back_together():
    coordination = Coordination.of(Task.RESTORE, CUT, NODES, TO_KEEP)
    coordination.start()
    stands = [Stands("a", Place.STOPPED, "x"), Stands("b", Place.SUSPENDED, "x"), Stands("c", Place.STOPPED, "x")]
    assert after(coordination, *stands) == [Begin(node) for node in NODES]
    after(coordination, Came("a", Barrier.READY), Failed("c", Left.REFUSED), Failed("b", Left.TAKEN_BACK))
    assert after(coordination, Failed("a", Left.TAKEN_BACK)) == [Finish(Outcome.REFUSED)]
    assert coordination.places.by_node == {"a": Place.STOPPED, "b": Place.SUSPENDED, "c": Place.AS_BEFORE}


def test_a_recovery_leaves_a_whole_image_and_makes_stopped_parts_again_beside_running_ones():
    whole = begun(Task.RECOVER)
    stands = [Stands("a", Place.STOPPED, "x"), Stands("b", Place.SUSPENDED, "x"), Stands("c", Place.STOPPED, "x")]
    assert after(whole, *stands) == [Finish(Outcome.DONE)]
    mixed = begun(Task.RECOVER)
    stands[1] = Stands("b", Place.RUNNING)
    assert after(mixed, *stands) == [Restore("a", revives=True), Restore("c", revives=True)]
