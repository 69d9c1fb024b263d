"""Steps of a checkpoint: the image, the decision and after it, and a program that runs on."""

from types import SimpleNamespace
from typing import Any

import pytest
from stepping import DEVICE, SIZE, Made, Recorder, drained

from gcr.control import ControlMeans
from gcr.engine.steps import decide, prepare, release, run_on
from gcr.engine.steps.behind import Behind
from gcr.engine.steps.compare import Compare
from gcr.engine.steps.hand_over import HandOver
from gcr.engine.steps.image import KeepImage, WriteOut
from gcr.engine.steps.prepare import Prepare
from gcr.engine.steps.quiesce import Quiesce
from gcr.engine.steps.resident import RefuseToStay, refuse_means_that_leave
from gcr.engine.steps.run_on import Resume, Seal
from gcr.engine.steps.snapshot import DrainStanding, MakeRoom
from gcr.engine.work import Options
from gcr.errors import PeerGone, UnsupportedState, WrongState
from gcr.job.decisions import KeptImage
from gcr.job.states import State, Way
from gcr.peers.shares import Lent, Shares
from gcr.protocol.operations.worker import Moved

# ---- the image, the decision and after it ------------------------------------------------------------------------


def streamed(made: Made) -> None:
    outlet: Any = Recorder("outlet", made.said)
    outlet.kept_in = KeptImage("warm", "/store")
    made.work.stream = SimpleNamespace(outlet=outlet, kept_in=None)  # type: ignore[assignment]
    made.work.drained[1, DEVICE] = drained()


def test_an_image_is_durable_before_the_decision_and_withdrawn_without_one():
    made = Made(State.FROZEN_DRAINED)
    streamed(made)
    assert made.does(KeepImage(made.work)) == []
    assert [each for each in made.does(WriteOut(made.work)) if "." in each] == [
        "ballasts.of",
        "journal.intend",
        "outlet.finish",
    ]
    assert made.work.kept_in == KeptImage("warm", "/store")
    assert made.undone() == ["journal.give_up", "outlet.withdraw"]
    made.work.decision = object()  # type: ignore[assignment]
    KeepImage(made.work).withdraw()
    assert made.said == ["journal.give_up", "outlet.withdraw"]


def test_without_a_stream_there_is_no_image_to_write_or_withdraw():
    made = Made(State.FROZEN_DRAINED)
    assert (made.does(KeepImage(made.work)), made.does(WriteOut(made.work)), made.undone()) == ([], [], [])


@pytest.mark.parametrize(("way", "kind"), [(Way.WHOLE, "checkpoint"), (Way.DATA_ONLY, "data_only")])
def test_the_decision_names_every_process(way, kind):
    made = Made(State.FROZEN_DRAINED, way)
    made.work.drained[1, DEVICE] = drained()
    decide.decide(made.work)
    (known,) = made.work.decision.processes  # type: ignore[union-attr]
    assert (made.said[-1], known.pid, known.bytes, known.ballast) == (f"decide {kind}", 1, {DEVICE: SIZE}, {DEVICE: 5})
    assert made.target.process.suspension.bytes_by_device == {DEVICE: SIZE}


def test_nothing_is_decided_where_a_byte_was_not_copied():
    made = Made(State.FROZEN_DRAINED)
    made.work.drained[1, DEVICE] = drained(bytes=SIZE - 1)
    with pytest.raises(PeerGone):
        decide.decide(made.work)
    assert (made.said, made.work.decision) == ([], None)


@pytest.mark.parametrize(
    ("way", "at", "to"),
    [
        (Way.WHOLE, State.FROZEN_DRAINED, State.SUSPENDED),
        (Way.DATA_ONLY, State.DRAINED, State.DATA_SUSPENDED),
        (Way.WHOLE, State.EXITED, State.EXITED),
    ],
)
def test_release_lets_go_everywhere_and_then_asks_the_device(way, at, to):
    made = Made(at, way, release=PeerGone("dead"))
    release.release(made.work)
    assert made.said == ["ballasts.settle", "worker.release", "keeper.drop", "spare.close", "wait"]
    assert made.state == to


def staying(state: State, **answers: Any) -> Made:
    """Returns a checkpoint whose memory is to stay."""
    made = Made(state, **answers)
    made.work.options = Options(resident=True)
    made.node.stay = lambda worker, _copy: worker.stay()
    return made


def test_memory_that_stays_is_not_released_and_no_keeper_has_it():
    made = staying(State.FROZEN_DRAINED, stay=SIZE)
    release.release(made.work)
    assert made.said == ["ballasts.settle", "worker.stay", "keeper.drop", "spare.close", "wait"]
    assert (made.state, made.work.count.resident) == (State.SUSPENDED, {(1, DEVICE): SIZE})


def test_memory_that_cannot_stay_is_released():
    made = staying(State.FROZEN_DRAINED, stay=WrongState("the copy is not whole"))
    release.release(made.work)
    assert made.said[:3] == ["ballasts.settle", "worker.stay", "worker.release"]
    assert (made.state, made.work.count.resident) == (State.SUSPENDED, {})


def test_a_process_whose_memory_cannot_stay_is_refused_where_it_was_asked_for():
    made = staying(State.PREPARED)
    made.does(RefuseToStay(made.work))
    made.target.process.copied_out = True
    with pytest.raises(UnsupportedState, match="copies by itself"):
        made.does(RefuseToStay(made.work))
    made.target.process.copied_out, made.target.shares = False, Shares(7, lent=(Lent(1, 8, 9),))
    with pytest.raises(UnsupportedState, match="shares"):
        made.does(RefuseToStay(made.work))
    made.work.options = Options()
    assert made.does(RefuseToStay(made.work)) == []


@pytest.mark.parametrize("means", [each for each in ControlMeans if each is not ControlMeans.DRIVER])
def test_memory_does_not_stay_where_the_driver_saves_nothing_from_outside(means):
    refuse_means_that_leave(ControlMeans.DRIVER)
    with pytest.raises(UnsupportedState):
        refuse_means_that_leave(means)


# ---- a program that runs on --------------------------------------------------------------------------------------


def test_the_parents_hashes_are_given_to_the_worker_of_a_process_that_it_has(pipe):
    made = Made(State.PREPARED, Way.RUNNING_ON)
    assert made.does(Compare(made.work, lambda _targets: {1: pipe})) == ["worker.compare_with"]
    assert made.does(Compare(made.work, lambda _targets: {})) == []
    made.target.process.copied_out = True
    with pytest.raises(UnsupportedState):
        made.does(Compare(made.work, lambda _targets: pytest.fail("it was refused before")))


@pytest.fixture
def pipe():
    import os

    read, write = os.pipe()
    os.close(write)
    yield read
    with pytest.raises(OSError):
        os.fstat(read)  # the step closed it


@pytest.mark.parametrize("snapshot", [0, SIZE])
def test_a_device_is_occupied_until_the_snapshot_is_read(snapshot):
    made = Made(State.PREPARED, Way.RUNNING_ON)
    behind = Behind(made.work, Seal(made.work))
    assert made.does(MakeRoom(made.work, behind.occupying)) == ["occupied", "worker.make_room"]
    assert made.does(DrainStanding(made.work)) == ["worker.drain"]
    made.work.drained[1, DEVICE] = drained(snapshot=snapshot)
    made.said.clear()
    behind.finish(lambda *_: None)
    read = ["worker.copy_on", "free", "target.forget_copies"]
    assert made.said == (read if snapshot else ["target.forget_copies", "free"])


def test_a_snapshot_of_which_a_part_was_read_fails_and_nothing_of_the_copy_is_kept(monkeypatch):
    made, closed = Made(State.RUNNING, Way.RUNNING_ON, copy_on=Moved(1, 1.0)), []
    monkeypatch.setattr(run_on, "close_all", closed.extend)
    made.work.drained[1, DEVICE] = drained(snapshot=SIZE)
    behind = Behind(made.work, Seal(made.work, [(made.target, [70, 71])]))
    with pytest.raises(PeerGone, match="not all"):
        behind.finish(lambda *_: pytest.fail("it was handed on"))
    assert (made.said, closed) == (["worker.copy_on", "target.forget_copies"], [70, 71])


def test_the_copy_is_sealed_the_gate_opens_and_the_copy_is_handed_on(monkeypatch):
    made, closed, copied = Made(State.QUIESCED, Way.RUNNING_ON), [], []
    monkeypatch.setattr(run_on, "close_all", closed.extend)
    monkeypatch.setattr(run_on, "seal", lambda *_, **__: [70, 71])
    behind = Behind(made.work, Seal(made.work))
    made.does(behind.seal)
    resume = Resume(made.work, set())
    assert (made.does(resume), made.state) == (["target.resume", "target.forget_memory"], State.RUNNING)
    assert (resume.running, made.undone()) == ({1}, [])
    behind.finish(lambda _target, fds: copied.extend(fds))
    assert (copied, closed, made.said) == ([70, 71], [], ["target.forget_copies"])


def test_of_a_program_that_runs_on_nothing_is_undone_any_more():
    """Another transaction may have stopped it again."""
    made = Made(State.QUIESCED, Way.RUNNING_ON)
    step = Prepare(made.work, running={1})
    step.run_on(made.target)
    step.forget_exports(made.target)
    assert (made.said, made.state) == ([], State.QUIESCED)


def test_the_copy_outlives_the_exports_of_a_program_that_runs_on():
    made = Made(State.QUIESCED, Way.RUNNING_ON)
    Prepare(made.work).forget_exports(made.target)
    assert made.said == ["target.forget_memory"]


@pytest.mark.parametrize("step", [Prepare, Quiesce, HandOver], ids=lambda step: step.__name__)
def test_a_process_that_has_ended_fails_the_step_and_its_undo_lets_it_be(step):
    made = Made(State.EXITED)
    with pytest.raises(PeerGone, match="has ended"):
        made.does(step(made.work))
    made.said.clear()
    assert [each for each in made.undone() if not each.startswith("target.forget_")] == []
    assert made.state == State.EXITED


def test_room_is_asked_for_every_device():
    made = Made(State.PREPARED)
    made.target.bytes_by_device = {DEVICE: SIZE, "GPU-2": SIZE}
    prepare.take_room(made.work)
    assert made.said == ["worker.reserve"] * 2
