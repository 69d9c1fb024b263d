"""Each step of a checkpoint by itself: what it does, and what its undo does, also where it was cut short."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gcr.config import Config
from gcr.engine.node import Course
from gcr.engine.progress import Meter
from gcr.engine.steps import copy_out, decide, freeze_and_drain, prepare, release, run_on, stage
from gcr.engine.steps.behind import Behind
from gcr.engine.steps.compare import Compare
from gcr.engine.steps.copy_out import CopyOut
from gcr.engine.steps.freeze_and_drain import FreezeAndDrain
from gcr.engine.steps.hand_over import HandOver
from gcr.engine.steps.image import KeepImage, WriteOut
from gcr.engine.steps.live import CopyLive
from gcr.engine.steps.prepare import Prepare, Reserve
from gcr.engine.steps.quiesce import Quiesce
from gcr.engine.steps.run_on import Resume, Seal
from gcr.engine.steps.snapshot import DrainStanding, MakeRoom
from gcr.engine.steps.stage import Stage
from gcr.engine.transaction import Transaction
from gcr.engine.work import Options, Work
from gcr.errors import DriverGone, NoDescriptors, NoRoom, PeerGone, RolledBack, UnsupportedState
from gcr.job.journal import KeptImage
from gcr.job.process import Process
from gcr.job.states import State, Way
from gcr.processes import identify
from gcr.protocol.operations.worker import CopiedLive, Drained, Moved

DEVICE = "GPU-1"
SIZE = 6 << 20


class Recorder:
    """Says which of its methods were called; answers with `answers`, and raises those that are errors."""

    def __init__(self, name: str, said: list[str], **answers: Any) -> None:
        self.name, self.said, self.answers = name, said, answers

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any, **_: Any) -> Any:
            self.said.append(f"{self.name}.{method}")
            answer = self.answers.get(method)
            if isinstance(answer, Exception):
                raise answer
            return answer(*args) if callable(answer) else answer

        return call


def drained(**other: Any) -> Drained:
    return replace(Drained(SIZE, 1.0, copied=SIZE, handles=1, snapshot=0), **other)


class RecordedWorker(Recorder):
    """A worker whose parts record under its own name."""

    handles = copies = rings = property(lambda self: self)


class Target(Recorder):
    """A process of a job on one device, with its agent, worker and keeper."""

    def __init__(self, said: list[str], state: State, way: Way, pid: int = 0, **answers: Any) -> None:
        super().__init__("target", said, **answers)
        done = drained()
        identity = identify(1)
        assert identity
        self.agent = Recorder("agent", said)
        self.agent.channel = SimpleNamespace(closed=SimpleNamespace(is_set=lambda: False))
        self.process = Process("llm", identity, state, way, peer=self.agent)  # type: ignore[arg-type]
        self.pid, self.hold, self.owner, self.transaction = identity.pid, "1.1", "llm/1", 7
        self.bytes_by_device, self.devices = {DEVICE: SIZE}, [DEVICE]
        self.keeps_context, self.copy = False, None
        self.world = SimpleNamespace(backend="nvidia", simulated=False, environment=())
        allocation = SimpleNamespace(spec=SimpleNamespace(size=SIZE))
        table = SimpleNamespace(bytes=SIZE, of_device=lambda _device: [allocation], mappings=list, ordinals={})
        self.books = SimpleNamespace(table=table)
        answers = {"drain": done, "seal": lambda *_: [], "make_room": True, **answers}
        answers = {"copy_on": Moved(SIZE, 2.0), "copy_live": CopiedLive(SIZE, 1.0, copied=SIZE), **answers}
        self.its_worker = RecordedWorker("worker", said, **answers)
        self.its_worker.device = DEVICE
        self.its_keeper = Recorder("keeper", said, **answers)
        self.exports = Recorder("exports", said, export_new=1)
        self.imports = Recorder("imports", said, **answers)
        self.control_state = Recorder("control", said, **answers)
        self.spare = Recorder("spare", said)

    def worker(self, _device: str) -> Recorder:
        return self.its_worker

    def workers(self) -> list[Recorder]:
        return [self.its_worker]

    def keeper(self) -> Recorder:
        return self.its_keeper


class Journal(Recorder):
    def decide(self, record: Any) -> None:
        self.said.append(f"decide {record.kind}")


class Made:
    """A checkpoint in which one step is done."""

    def __init__(self, state: State, way: Way = Way.WHOLE, live: bool = False, **answers: Any) -> None:
        self.said: list[str] = []
        self.target = Target(self.said, state, way, **answers)
        self.node = SimpleNamespace(config=Config(), journal=Journal("journal", self.said), occupying=self.occupying)
        self.node.warm_worker = lambda *_: self.target.its_worker
        self.target.node = self.node
        self.course = Course("checkpoint", 7, 60.0)
        self.work = Work.of("llm", [self.target], self.node, self.course, Options(way, live))  # type: ignore
        count: Any = SimpleNamespace(look_before=self._says("look"), look_without_data=self._says("look without"))
        count.wait = self._says("wait")
        ballasts: Any = Recorder("ballasts", self.said, of=5)
        ballasts.room = Recorder("room", self.said)
        self.work.count, self.work.ballasts = count, ballasts
        self.meter = Meter(self.course, "draining", {(1, DEVICE): SIZE})
        self.undo = Transaction("llm")

    def _says(self, word: str) -> Any:
        return lambda *_, **__: self.said.append(word)

    @contextmanager
    def occupying(self, _device: str) -> Any:
        self.said.append("occupied")
        yield
        self.said.append("free")

    @property
    def state(self) -> State:
        return self.target.process.state

    def does(self, step: Any) -> list[str]:
        """Returns what was said by the step."""
        self.said.clear()
        step.do(self.undo)
        return list(self.said)

    def undone(self) -> list[str]:
        """Returns what was said by its undo."""
        self.said.clear()
        self.undo.roll_back(None)
        assert not self.undo.failed
        return list(self.said)


# ---- while the program runs --------------------------------------------------------------------------------------


def test_prepare_exports_and_its_undo_opens_the_gate_before_it_forgets_them():
    made = Made(State.RUNNING)
    assert made.does(Prepare(made.work)) == ["exports.choose_strategy", "exports.export_new"]
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


def test_quiesce_exports_what_was_made_meanwhile_before_it_stops_anything():
    made = Made(State.PREPARED)
    assert made.does(Quiesce(made.work)) == ["exports.export_new", "worker.reserve", "agent.quiesce"]
    assert made.state == State.QUIESCED


# ---- while it stands ---------------------------------------------------------------------------------------------


def test_hand_over_and_the_way_back():
    made = Made(State.QUIESCED)
    assert made.does(HandOver(made.work)) == ["target.hand_over"]
    assert made.state == State.HANDED_OVER
    assert made.undone() == ["imports.map_back"]
    assert (made.state, made.work.leftovers.out) == (State.QUIESCED, set())


def test_a_hand_over_that_failed_half_way_is_mapped_back_as_well():
    made = Made(State.QUIESCED, hand_over=PeerGone("half of it"))
    with pytest.raises(PeerGone):
        made.does(HandOver(made.work))
    assert (made.undone(), made.state) == (["imports.map_back"], State.QUIESCED)


def test_memory_that_cannot_be_mapped_back_stays_with_gcr():
    made = Made(State.HANDED_OVER, map_back=NoDescriptors("none left"))
    with pytest.raises(NoDescriptors):
        HandOver(made.work).map_back(made.target)
    assert (made.state, made.work.leftovers.out) == (State.HANDED_OVER, {1})


def test_a_process_whose_driver_has_shut_down_goes_on_to_its_end():
    made = Made(State.HANDED_OVER, map_back=DriverGone("it ends"))
    HandOver(made.work).map_back(made.target)
    assert (made.state, made.work.leftovers.out, made.target.process.seen.ending) == (State.RUNNING, set(), True)


@pytest.mark.parametrize("short", [NoRoom("taken", missing=1), NoDescriptors("none left")])
def test_a_process_that_copied_itself_stays_suspended_where_its_room_is_taken(short):
    made = Made(State.HANDED_OVER, map_back=short)
    made.target.copy = object()
    HandOver(made.work).map_back(made.target)
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
    assert sorted(said) == ["ballasts.keep", "control.freeze", "look without", "worker.drain"]
    assert said.index("look without") < said.index("control.freeze") < said.index("ballasts.keep")
    assert made.state == State.FROZEN_DRAINED
    assert made.undone() == ["ballasts.give", "control.thaw"]
    assert made.state == State.HANDED_OVER


@pytest.mark.parametrize("fails", ["freeze", "drain"])
def test_where_one_of_the_two_fails_both_are_taken_back(fails):
    made = Made(State.HANDED_OVER, **{fails: RolledBack("no")})
    with pytest.raises(RolledBack):
        made.does(FreezeAndDrain(made.work, made.meter))
    assert made.state == {"freeze": State.DRAINED, "drain": State.FROZEN}[fails]
    assert (made.undone(), made.state) == (["ballasts.give", "control.thaw"], State.HANDED_OVER)


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
