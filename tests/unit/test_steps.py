"""Each step of a checkpoint by itself: what it does, and what its undo does, also where it was cut short."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from stepping import DEVICE, SIZE, Made, Recorder, Target, drained

from gcr.config import Config
from gcr.engine.steps import copy_out, freeze_and_drain, quiesce, stage
from gcr.engine.steps.copy_out import CopyOut
from gcr.engine.steps.freeze_and_drain import FreezeAndDrain
from gcr.engine.steps.hand_over import HandOver
from gcr.engine.steps.live import CopyLive
from gcr.engine.steps.prepare import Prepare, Reserve
from gcr.engine.steps.quiesce import Quiesce
from gcr.engine.steps.stage import Lend, Stage
from gcr.errors import DriverGone, NoDescriptors, NoRoom, PeerGone, RolledBack
from gcr.job.states import State, Way

WAY_BACK = ["imports.take_own", "imports.map"]

# ---- while the program runs --------------------------------------------------------------------------------------


def test_prepare_exports_and_its_undo_opens_the_gate_before_it_forgets_them():
    made = Made(State.RUNNING)
    assert made.does(Prepare(made.work)) == ["exports.choose_strategy", "target.read_shares", "exports.export_new"]
    assert made.state == State.PREPARED
    assert made.undone() == ["target.resume", "target.forget_memory", "target.forget_copies"]
    assert made.state == State.RUNNING


@pytest.mark.parametrize("state", [State.RUNNING, State.PREPARED, State.QUIESCED])
def test_a_process_runs_on_from_wherever_it_was_stopped(state):
    made = Made(state)
    Prepare(made.work).run_on(made.target)
    assert (made.state, made.said) == (State.RUNNING, ["target.resume"])


@pytest.mark.parametrize(("left", "said"), [("out", ["exports.entrust_spares"]), ("suspended", [])])
def test_what_could_not_be_brought_back_is_neither_resumed_nor_forgotten(left, said):
    made = Made(State.QUIESCED)
    made.work.leftovers.out.update([1] * (left == "out"))
    made.work.leftovers.suspended.update({1: NoRoom("no", missing=1)} if left == "suspended" else {})
    Prepare(made.work).run_on(made.target)
    Prepare(made.work).forget_exports(made.target)
    assert (made.state, made.said) == (State.QUIESCED, said)


def test_room_is_reserved_before_it_is_asked_whether_the_program_may_stop():
    made = Made(State.PREPARED)
    step = Reserve(made.work, lambda _short: pytest.fail("there is room"), made._says("may stop"))
    assert made.does(step) == ["worker.reserve", "look", "room.look", "may stop"]
    assert "prepared" in made.course.marks


def test_without_room_the_bytes_go_another_way_or_nothing_is_begun():
    made = Made(State.PREPARED, reserve=NoRoom("full", missing=1))
    stream = SimpleNamespace(outlet=Recorder("outlet", made.said), kept_in=None)
    assert made.does(Reserve(made.work, lambda _short: stream, made._says("may stop")))[-1] == "outlet.prepare"
    assert made.work.stream is stream

    def refuse(short):
        raise short

    with pytest.raises(NoRoom, match="full"):
        made.does(Reserve(made.work, refuse, made._says("may stop")))


def test_a_live_copy_is_counted():
    made = Made(State.PREPARED, live=True)
    assert made.does(CopyLive(made.work)) == ["worker.copy_live"]
    assert made.work.copied_live == SIZE


def test_several_processes_are_stopped_together_and_one_by_itself(monkeypatch):
    made = Made(State.PREPARED)
    together = made._says("together")
    monkeypatch.setattr(quiesce, "Closing", lambda *_: SimpleNamespace(run=together))
    made.work.targets = [made.target, made.target]
    Quiesce(made.work).stop(5.0)
    made.node.config = Config(pulse_ms=0)  # no call may pass a closed gate
    Quiesce(made.work).stop(5.0)
    assert made.said == ["together", "agent.quiesce", "agent.quiesce"]


def test_quiesce_exports_what_was_made_meanwhile_before_it_stops_anything():
    made = Made(State.PREPARED)
    assert made.does(Quiesce(made.work)) == ["exports.export_new", "worker.reserve", "agent.quiesce"]
    assert made.state == State.QUIESCED


# ---- while it stands ---------------------------------------------------------------------------------------------


def test_hand_over_and_the_way_back():
    made = Made(State.QUIESCED)
    assert made.does(HandOver(made.work)) == ["target.hand_over"]
    assert made.state == State.HANDED_OVER
    assert made.undone() == WAY_BACK
    assert (made.state, made.work.leftovers.out) == (State.QUIESCED, set())


def test_a_hand_over_that_failed_half_way_is_mapped_back_as_well():
    made = Made(State.QUIESCED, hand_over=PeerGone("half of it"))
    with pytest.raises(PeerGone):
        made.does(HandOver(made.work))
    assert (made.undone(), made.state) == (WAY_BACK, State.QUIESCED)


@pytest.mark.parametrize("step", ["take_own", "map"])
def test_memory_that_cannot_be_mapped_back_stays_with_gcr(step):
    made = Made(State.QUIESCED, **{step: NoDescriptors("none left")})
    made.does(HandOver(made.work))
    said = made.undone(failed=1)
    assert (made.state, made.work.leftovers.out) == (State.HANDED_OVER, {1})
    assert said == WAY_BACK[: WAY_BACK.index(f"imports.{step}") + 1]


@pytest.mark.parametrize("step", ["take_own", "map"])
def test_a_process_whose_driver_has_shut_down_goes_on_to_its_end(step):
    made = Made(State.QUIESCED, **{step: DriverGone("it ends")})
    made.does(HandOver(made.work))
    made.undone()
    assert (made.state, made.work.leftovers.out, made.target.process.seen.ending) == (State.RUNNING, set(), True)


@pytest.mark.parametrize("short", [NoRoom("taken", missing=1), NoDescriptors("none left")])
def test_a_process_that_copied_itself_stays_suspended_where_its_room_is_taken(short):
    made = Made(State.QUIESCED, take_own=short)
    made.target.copy = object()
    made.does(HandOver(made.work))
    made.undone()
    assert made.state == State.DATA_SUSPENDED
    assert (made.work.leftovers.out, made.work.leftovers.suspended) == (set(), {1: short})
    assert "decide data_only" in made.said


def test_a_process_that_copies_itself_is_refused_where_the_bytes_stream():
    made = Made(State.QUIESCED)
    made.target.process.copied_out = True
    made.work.stream = SimpleNamespace(kept_in=None)
    with pytest.raises(NoRoom, match="process 1 must copy by itself"):
        made.does(CopyOut(made.work, made.meter))


class Copy:
    """A stand-in for an AgentCopy: all of the device was moved."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.moved = {DEVICE: SIZE}

    def run(self, *_: Any) -> float:
        return 1.0


def test_a_process_copies_itself_and_its_copy_is_staged(monkeypatch):
    made = Made(State.QUIESCED)
    monkeypatch.setattr(copy_out, "seal", lambda *_, **__: [])
    monkeypatch.setattr(copy_out, "StagedCopy", SimpleNamespace(of=lambda _fds: SimpleNamespace(fds=[])))
    monkeypatch.setattr(copy_out, "AgentCopy", Copy)
    assert made.does(CopyOut(made.work, made.meter)) == []
    made.target.process.copied_out = True
    assert made.does(CopyOut(made.work, made.meter)) == ["agent.stage", "keeper.stage"]
    assert made.work.drained[1, DEVICE].bytes == SIZE
    assert made.undone() == ["keeper.unstage_all", "agent.drop"]


def test_freeze_beside_drain_and_the_way_back():
    made = Made(State.HANDED_OVER)
    said = made.does(FreezeAndDrain(made.work, made.meter))
    assert sorted(said) == ["ballasts.keep", "control.lock", "control.save", "look without", "worker.drain"]
    said.remove("worker.drain")
    assert said == ["look without", "control.lock", "control.save", "ballasts.keep"]
    assert made.state == State.FROZEN_DRAINED
    assert made.undone() == ["ballasts.given_up", "control.thaw"]
    assert made.state == State.HANDED_OVER


def test_a_head_start_begins_with_the_drain_and_gives_its_room_back_before_the_driver_needs_any():
    made = Made(State.HANDED_OVER)
    said = made.does(FreezeAndDrain(made.work, made.meter, Recorder("next", made.said)))
    assert (said[0], said[-1]) == ("next.begin", "next.stop")
    assert made.undone() == ["next.give_up", "ballasts.given_up", "control.thaw"]


@pytest.mark.parametrize("fails", ["lock", "save", "drain"])
def test_where_one_of_the_two_fails_both_are_taken_back(fails):
    made = Made(State.HANDED_OVER, **{fails: RolledBack("no")})
    with pytest.raises(RolledBack):
        made.does(FreezeAndDrain(made.work, made.meter))
    assert made.state == {"drain": State.FROZEN}.get(fails, State.DRAINED)
    assert (made.undone(), made.state) == (["ballasts.given_up", "control.thaw"], State.HANDED_OVER)


def beside(made: Made, **answers: Any) -> Target:
    """Adds a process to a checkpoint."""
    other = Target(made.said, State.HANDED_OVER, Way.WHOLE, **answers)
    other.node = made.node
    made.work.targets = [*made.work.targets, other]
    return other


def test_no_control_state_is_saved_before_every_process_is_locked():
    made = Made(State.HANDED_OVER)
    slow = threading.Event()
    beside(made, lock=lambda *_: slow.wait(0.2))
    said = made.does(FreezeAndDrain(made.work, made.meter))
    control = [word for word in said if word.startswith("control.")]
    assert control == ["control.lock"] * 2 + ["control.save"] * 2
    assert "locked" in made.course.marks


@pytest.mark.parametrize("error", [RolledBack("refused"), PeerGone("it died")])
def test_a_lock_that_fails_costs_no_process_its_control_state_and_all_are_thawed(error):
    made = Made(State.HANDED_OVER)
    other = beside(made, lock=error)
    with pytest.raises(type(error)):
        made.does(FreezeAndDrain(made.work, made.meter))
    assert "control.save" not in made.said
    assert {made.state, other.process.state} == {State.DRAINED}
    assert made.undone() == ["ballasts.given_up", "control.thaw"] * 2
    assert {made.state, other.process.state} == {State.HANDED_OVER}


def test_with_data_only_the_control_state_is_not_touched():
    made = Made(State.HANDED_OVER, Way.DATA_ONLY)
    assert made.does(FreezeAndDrain(made.work, made.meter)) == ["worker.drain"]
    assert made.state == State.DRAINED
    assert (made.undone(), made.state) == ([], State.HANDED_OVER)


@pytest.mark.parametrize("wrong", [{"bytes": SIZE - 1}, {"handles": 2}])
def test_a_worker_that_copied_something_else_than_the_books_say_fails_it(wrong):
    made = Made(State.HANDED_OVER, Way.DATA_ONLY, drain=drained(**wrong))
    with pytest.raises(PeerGone, match="not all there are"):
        freeze_and_drain.drain(made.work, made.target, made.meter)
    assert made.work.drained == {}


def test_stage_and_its_undo():
    made = Made(State.FROZEN_DRAINED)
    assert made.does(Stage(made.work)) == ["worker.seal", "agent.stage", "keeper.stage"]
    assert made.undone() == ["keeper.unstage_all", "agent.drop"]


def test_an_image_is_lent_what_was_staged_of_a_process_that_its_workers_copied():
    made, lent = Made(State.FROZEN_DRAINED), []
    lend = Lend(made.work, lambda target, fds: lent.append((target.pid, fds)))
    assert made.does(lend) == ["worker.seal"]
    assert lent == [(made.target.pid, [])]
    made.target.process.copied_out = True
    assert made.does(lend) == []


def test_a_keeper_that_dies_is_staged_with_its_successor():
    made = Made(State.FROZEN_DRAINED)
    answers = [PeerGone("dead"), None]

    def keeps(*_: Any) -> None:
        if error := answers.pop(0):
            raise error

    made.target.its_keeper.answers["stage"] = keeps
    stage.keep(made.target, [])
    assert answers == []


def test_what_stays_suspended_is_not_unstaged():
    made = Made(State.DATA_SUSPENDED)
    made.work.leftovers.suspended[1] = NoRoom("no", missing=1)
    stage.unstage(made.work, made.target)
    assert made.said == []
