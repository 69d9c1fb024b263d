"""A restore built by itself, and each of its steps: what it does, and what its undo does."""

import os
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from stepping import DEVICE, SIZE, RecordedWorker, Recorder

from gcr.config import Config
from gcr.engine.node import Course
from gcr.engine.plan import Plan
from gcr.engine.restore import Restore
from gcr.engine.steps import bring_back, load, memory, open
from gcr.engine.steps.begin import Begin
from gcr.engine.steps.bring_back import BringBack
from gcr.engine.steps.load import Load
from gcr.engine.steps.map import Map
from gcr.engine.steps.memory import MakeMemory
from gcr.engine.transaction import Transaction
from gcr.engine.turns import Turns
from gcr.errors import DriverError, DriverGone, Lost, NoRoom, PeerGone, RolledBack
from gcr.job.decisions import DecisionRecord, ProcessDecision
from gcr.job.process import Process
from gcr.job.states import State, Way
from gcr.losterrors import ProcessLost
from gcr.peers.shares import NOTHING
from gcr.processes import identify
from gcr.protocol.operations.worker import Moved

OTHER = "GPU-2"


class Made:
    """A restore of one suspended process, in which one step is done."""

    def __init__(self, data_only: bool = False, image: Any = None, moves: dict[str, str] | None = None, **answers: Any):
        self.said: list[str] = []
        identity = identify(1)
        assert identity
        answers = {"refill": Moved(SIZE, 1.0), "attach": True, "free_bytes": {}, **answers}
        at_rest, way = (State.DATA_SUSPENDED, Way.DATA_ONLY) if data_only else (State.SUSPENDED, Way.WHOLE)
        agent = Recorder("agent", self.said, **answers)
        agent.channel = SimpleNamespace(closed=SimpleNamespace(is_set=lambda: False))
        process = Process("llm", identity, at_rest, way, peer=agent)  # type: ignore[arg-type]
        process.suspension.bytes_by_device, process.suspension.ballast_by_device = {DEVICE: SIZE}, {DEVICE: 5}
        target = Recorder("target", self.said, **answers)
        target.process, target.pid, target.transaction, target.hold, target.owner = process, 1, 7, "1.1", "llm/1"
        target.moves, target.keeps_context, target.copy, target.world = moves or {}, False, None, None
        target.shares, target.borrowed = NOTHING, ()
        here = target.moves.get(DEVICE, DEVICE)
        target.bytes_by_device, target.ballast_by_device = {here: SIZE}, {here: 5}
        self.worker = RecordedWorker("worker", self.said, **answers)
        self.worker.device = here
        target.workers = lambda: [self.worker]
        target.left = lambda device: DEVICE if target.moves else device
        self.keeper = Recorder("keeper", self.said)
        target.keeper = lambda: self.keeper
        target.imports = Recorder("imports", self.said, **answers)
        target.imports.given_back = {1}
        target.control = Recorder("driver", self.said, **answers)
        target.control_state = Recorder("control", self.said, **answers)
        target.staged = self._descriptors
        self.target, self.process = target, process
        node = Recorder("node", self.said)
        node.config, node.journal, node.turns = Config(), Recorder("journal", self.said, **answers), Turns()
        node.warm_worker = lambda *_: self.worker
        target.node = node
        known = ProcessDecision(1, identity.start_time, {DEVICE: SIZE}, {DEVICE: 5})
        decision = DecisionRecord("llm", 7, "data_only" if data_only else "checkpoint", 0.0, (known,), "nvidia", False)
        self.restore = Restore("llm", [target], decision, node, Course("restore", 8, 60.0), image)  # type: ignore
        self.undo = Transaction("llm")
        self.given: list[int] = []

    def _descriptors(self) -> list[int]:
        self.given.append(os.open("/dev/null", os.O_RDONLY))
        return [self.given[-1]]

    def does(self, step: Any) -> list[str]:
        """Returns what was said by the step."""
        self.said.clear()
        step.do(self.undo)
        return list(self.said)

    def undone(self, failed: int = 0) -> list[str]:
        """Returns what was said by its undo."""
        self.said.clear()
        self.undo.roll_back(None)
        assert len(self.undo.failed) == failed
        return list(self.said)


@pytest.fixture(autouse=True)
def looks(monkeypatch):
    """A process that was looked at: its flags."""
    flags = SimpleNamespace(status=SimpleNamespace(flags=0))
    monkeypatch.setattr(Process, "look", lambda _self: flags)


@pytest.mark.parametrize("data_only", [False, True])
def test_a_restore_begins_and_its_undo_suspends_the_job_as_it_was(data_only):
    made = Made(data_only)
    at_rest = made.process.state
    assert made.does(Begin(made.restore)) == []
    assert made.process.state == State.RESTORING
    made.undone()
    assert made.process.state == at_rest


def test_what_an_undo_could_not_suspend_again_is_left_to_recovery():
    made = Made()
    made.does(Begin(made.restore))
    made.restore.adrift.add(1)
    made.undone()
    assert made.process.state == State.RESTORING


FRESH = ["agent.frozen", "agent.discard", "keeper.drop"]
LOOKED = ["target.comes_to_hidden", "target.attach"]


def test_the_worker_that_has_the_bytes_makes_memory_before_the_process_is_touched():
    made = Made(knows=True)
    assert made.does(MakeMemory(made.restore)) == [*FRESH, *LOOKED, "worker.knows", "worker.create"]
    assert made.restore.resident == {}
    assert made.undone() == ["worker.uncreate"]


def test_what_a_head_start_has_not_brought_is_refilled():
    made = Made(data_only=True, create=SIZE - 1)
    made.does(MakeMemory(made.restore))
    step = BringBack(made.restore)
    assert step._meter().sizes == {(1, DEVICE): 1}
    assert "worker.refill" in made.does(step)


def test_memory_that_is_resident_is_mapped_and_not_refilled():
    made = Made(knows=True, create=SIZE)
    made.does(MakeMemory(made.restore))
    assert made.restore.resident == {(1, DEVICE): SIZE}
    said = made.does(BringBack(made.restore))
    assert "worker.refill" not in said
    assert "imports.give_from_workers" in said
    assert made.restore.refilled == {}


def test_a_worker_that_does_not_have_the_bytes_is_given_them():
    made = Made()
    assert made.does(MakeMemory(made.restore))[-3:] == ["worker.knows", "worker.reclaim", "worker.create"]
    with pytest.raises(OSError):
        os.fstat(made.given[0])


def test_a_move_takes_the_bytes_from_the_device_that_is_left():
    made = Made(moves={DEVICE: OTHER, OTHER: DEVICE})
    said = made.does(MakeMemory(made.restore))
    assert said == [*FRESH, "worker.surrender", *LOOKED, "worker.surrender", "worker.reclaim", "worker.create"]
    assert made.undone() == ["worker.surrender"]


def test_room_that_gcr_has_for_a_moment_is_given_up_before_a_restore_is_refused():
    made = Made(knows=True, create=[NoRoom("full", missing=1), None])
    room = ["node.make_way", "node.free_room", "driver.holders", "node.leave"]
    assert made.does(MakeMemory(made.restore))[-6:] == ["worker.create", *room, "worker.create"]
    made = Made(knows=True, create=[NoRoom("full", missing=1), NoRoom("full", missing=1)])
    with pytest.raises(NoRoom) as caught:
        made.does(MakeMemory(made.restore))
    assert caught.value.device == DEVICE
    assert made.undone() == ["worker.uncreate"]


def test_jobs_are_evicted_one_after_the_other_before_any_snapshot_is_given_up():
    short = [NoRoom("full", missing=9), NoRoom("full", missing=4), None]
    made, asked = Made(knows=True, create=short), []
    made.restore.node.answers["make_way"] = lambda *how: asked.append(how) or 5
    said = made.does(MakeMemory(made.restore))
    assert said[-5:] == ["worker.create", "node.make_way", "worker.create", "node.make_way", "worker.create"]
    assert asked == [(DEVICE, 9, ["1.1"]), (DEVICE, 4, ["1.1"])]  # its own memory stays


@pytest.mark.parametrize("why", ["no context", "no room beside the context"])
def test_where_no_worker_can_the_process_copies_itself_if_its_device_has_room(why, monkeypatch):
    no_room = [NoRoom("full", missing=1), NoRoom("full", missing=1)]
    answers = {"attach": False} if why == "no context" else {"knows": True, "create": no_room}
    made = Made(without_contexts=True, free_bytes={DEVICE: SIZE + 5}, **answers)
    made.process.copied_out = True
    copy = object()
    monkeypatch.setattr(memory, "StagedCopy", SimpleNamespace(of=lambda _fds: copy))
    asked: list[object] = []
    made.restore.node.answers["make_way"] = lambda *how: asked.append(how)
    assert made.does(MakeMemory(made.restore))[-1] == "target.free_bytes"
    assert made.target.copy is copy
    made.target.answers["free_bytes"] = {DEVICE: SIZE + 4}
    asked.clear()
    with pytest.raises(NoRoom):
        MakeMemory(made.restore).refuse_without_room()
    assert asked == [(DEVICE, 1, ["1.1"])]
    os.close(made.given[-1])


def test_an_image_is_on_the_device_before_the_process_is_touched(monkeypatch):
    class Inflow:
        def __init__(self, *_: Any) -> None:
            self.done = {(1, DEVICE): Moved(SIZE, 1.0)}

        def run(self, pairs: Any) -> None:
            assert [(target.pid, worker.device) for target, worker in pairs] == [(1, DEVICE)]

    monkeypatch.setattr(load, "Inflow", Inflow)
    made = Made(image=SimpleNamespace())
    assert made.does(Load(made.restore, made.restore.image)) == []  # type: ignore[arg-type]
    assert made.restore.streamed
    assert "worker.refill" not in made.does(BringBack(made.restore))


def test_data_comes_back_beside_the_control_state_and_both_are_taken_back():
    made = Made()
    said = made.does(BringBack(made.restore))
    paced = [each for each in said if each == "worker.driver_at_work"]
    both = ["control.thaw", "imports.give_from_workers", "worker.drop_ballast", "worker.refill"]
    assert sorted(said) == sorted([*both, *paced])
    assert said.index("worker.drop_ballast") < said.index("control.thaw") < said.index("imports.give_from_workers")
    assert made.restore.refilled == {(1, DEVICE): Moved(SIZE, 1.0)}
    assert made.undone() == [*FRESH, *FRESH, "control.freeze_again"]
    assert made.target.imports.given_back == set()


@pytest.mark.parametrize("thaw", [None, PeerGone("it is gone")])
def test_refills_let_the_driver_in_between_until_it_is_done_also_where_it_fails(thaw):
    made = Made(thaw=thaw, driver_at_work=lambda _hold, seconds: made.said.append(f"at work: {seconds}"))
    with suppress(PeerGone):
        made.does(BringBack(made.restore))
    begun, done = made.said.index("at work: 0.5"), made.said.index("at work: 0.0")
    assert begun < made.said.index("worker.refill")
    assert begun < made.said.index("control.thaw") < done
    assert made.said.count("at work: 0.5") == 1


def test_a_worker_that_does_not_answer_about_the_driver_stops_no_restore():
    made = Made(driver_at_work=PeerGone("it is gone"))
    assert "imports.give_from_workers" in made.does(BringBack(made.restore))


def test_with_data_only_the_control_state_is_not_touched():
    made = Made(data_only=True)
    assert sorted(made.does(BringBack(made.restore))) == ["imports.give_from_workers", "worker.refill"]
    assert made.undone() == FRESH


def test_a_frozen_agent_is_not_asked_to_unmap():
    made = Made(frozen=True)
    bring_back.discard(made.target)  # type: ignore[arg-type]
    assert made.said == ["agent.frozen", "keeper.drop"]


def test_a_process_that_cannot_be_suspended_again_is_adrift_and_never_frozen_with_memory():
    made = Made(discard=RolledBack("it refuses"))
    made.does(BringBack(made.restore))
    assert "control.freeze_again" not in made.undone(failed=2)
    assert made.restore.adrift == {1}


def test_a_process_whose_driver_has_shut_down_is_let_go():
    made = Made(thaw=PeerGone("it ends"), freeze_again=DriverGone("it ends"))
    with pytest.raises(PeerGone):
        made.does(BringBack(made.restore))
    made.target.node = made.restore.node
    made.target.spare = Recorder("spare", made.said)
    made.undone()
    assert (made.process.state, made.process.seen.ending, made.restore.adrift) == (State.RUNNING, True, set())


def test_a_process_copies_its_bytes_in_after_its_control_state(monkeypatch):
    class Copy:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.moved = {DEVICE: SIZE}

        def run(self, *_: Any) -> float:
            return 2.0

    monkeypatch.setattr(bring_back, "AgentCopy", Copy)
    made = Made(free_bytes={DEVICE: 5})
    made.target.copy = SimpleNamespace(sizes=dict)
    assert made.does(BringBack(made.restore)) == ["target.free_bytes", "control.thaw", "imports.create"]
    assert made.restore.refilled[1, DEVICE] == Moved(SIZE, 2.0)
    made.undone()
    made.target.answers["free_bytes"] = {DEVICE: 4}  # another program has allocated meanwhile
    with pytest.raises(NoRoom):
        made.does(BringBack(made.restore))
    assert "control.thaw" not in made.said


def test_a_device_with_a_context_alone_is_asked_for_room_before_the_driver_is():
    made = Made(free_bytes={OTHER: 7})
    made.target.ballast_by_device = {DEVICE: 5, OTHER: 7}
    said = made.does(BringBack(made.restore))
    assert said.index("target.free_bytes") < said.index("worker.drop_ballast") < said.index("control.thaw")
    made.undone()
    made.target.answers["free_bytes"] = {OTHER: 6}
    with pytest.raises(NoRoom):
        made.does(BringBack(made.restore))
    assert not {"worker.drop_ballast", "control.thaw"} & {*made.said}


@pytest.mark.parametrize(("moves", "said"), [({}, ["agent.map"]), ({DEVICE: OTHER}, ["agent.moved", "agent.map"])])
def test_an_agent_knows_of_a_move_before_it_maps(moves, said):
    made = Made(moves=moves)
    assert made.does(Map(made.restore)) == said


def test_the_decision_says_where_the_process_is_now():
    made = Made(moves={DEVICE: OTHER})
    open.decide(made.restore)
    (known,) = made.restore.decision.processes
    assert (made.said, made.restore.decision.kind) == (["journal.decide"], "restored")
    assert (known.bytes, known.ballast, made.process.suspension.bytes_by_device) == (
        {OTHER: SIZE},
        {OTHER: 5},
        {OTHER: SIZE},
    )


def test_every_gate_opens_before_what_was_staged_is_dropped():
    made = Made()
    made.does(Begin(made.restore))
    made.process.copied_out = True
    open.open_all(made.restore)
    tidied = ["worker.forget_copy", "agent.drop", "keeper.unstage_all", "journal.forget"]
    assert made.said == ["target.forget_copy", "target.resume", *tidied]
    assert (made.process.state, made.process.copied_out) == (State.RUNNING, False)


def test_an_agent_that_lost_its_connection_is_waited_for(monkeypatch):
    monkeypatch.setattr(open, "POLL", 0.0)
    made = Made(resume=[PeerGone("it is gone"), PeerGone("it is gone"), None])
    made.does(Begin(made.restore))
    open.open_all(made.restore)
    assert made.said.count("target.resume") == 3
    assert made.process.state == State.RUNNING


@pytest.mark.parametrize(("error", "state"), [(Lost("gone"), State.LOST), (PeerGone("no"), State.SUSPENDED)])
def test_a_job_is_lost_where_its_driver_says_so(error, state):
    made = Made(thaw=error)
    with pytest.raises(type(error)):
        Plan(made.restore, [Begin(made.restore), BringBack(made.restore)]).prepare()
    assert made.process.state == state
    assert made.said[-1] == "target.forget_copy"
    assert ("journal.amend" in made.said) == (state is State.LOST)
    assert ("control.freeze_again" in made.said) == (state is State.SUSPENDED)


def test_the_driver_loses_a_process_as_it_is_frozen_again():
    made = Made(give_from_workers=PeerGone("no"), freeze_again=Lost("gone"))
    with pytest.raises(PeerGone):
        Plan(made.restore, [Begin(made.restore), BringBack(made.restore)]).prepare()
    assert made.process.state == State.LOST
    assert "journal.amend" in made.said


@pytest.mark.parametrize(
    ("error", "raised", "state"),
    [(Lost("gone"), ProcessLost, State.LOST), (DriverError("no"), DriverError, State.SUSPENDED)],
)
def test_the_others_stay_suspended_and_the_error_says_how_they_come_back(error, raised, state):
    made, other = Made(thaw=error), Made()
    other.target.pid = 2
    made.restore.targets = [made.target, other.target]
    with pytest.raises(raised) as caught:
        Plan(made.restore, [Begin(made.restore), BringBack(made.restore)]).prepare()
    assert (made.process.state, other.process.state) == (state, State.SUSPENDED)
    assert "gcr restore llm --without 1" in caught.value.hint
    assert "journal.amend" in made.said
