"""`gcr swap`: what it refuses before it touches anything, and what it undoes when the second job does not come back."""

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from reported import checkpointed, restored

from gcr.api.reports import CheckpointReport, RestoreReport, SwapReport
from gcr.api.requests import CheckpointRequest, NextJob, RestoreRequest, SwapRequest
from gcr.daemon.commands import checkpoint, restore
from gcr.daemon.commands.asked import Asked
from gcr.daemon.commands.swap import Swap
from gcr.daemon.jobs import Job, Jobs, Program
from gcr.engine.node import World
from gcr.errors import GcrError, Interrupted, Lost, NoRoom, SwapFailed, Unanswered, UsageError, WrongState
from gcr.job.process import Process
from gcr.job.states import State
from gcr.processes import ProcessIdentity


class Node:
    """Two jobs, of which one is suspended; `failing`: what a restore of each raises."""

    def __init__(self, **failing: GcrError) -> None:
        self.jobs, self.done, self.failing = Jobs(), [], failing
        self.residents = SimpleNamespace(all=lambda: list(self.there))
        self.there: list[Any] = []
        self.ahead, self.evicted = False, list[str]()  # whether B has a head start
        for pid, name, state in ((1, "llm", State.RUNNING), (2, "bb", State.SUSPENDED)):
            job = Job(name, "t", World("nvidia"), program=Program(pid=pid))
            job.processes[pid] = Process(name, ProcessIdentity(pid, 1), state)
            self.jobs.add(job)

    def checkpoint(self, request: CheckpointRequest, _asked: Asked) -> CheckpointReport:
        self.done.append(("checkpoint", request.target, request.timeout))
        if self.ahead:
            assert request.then == NextJob("bb")
            self.stay()
        if error := self.failing.get(f"out_{request.target}"):
            raise error
        return checkpointed(job=str(request.target))

    def restore(self, request: RestoreRequest, asked: Asked) -> RestoreReport:
        self.done.append(("restore", request.target, request.timeout))
        if asked.cancelled.is_set():
            raise Interrupted("interrupted; everything was taken back")
        if error := self.failing.get(str(request.target)):
            raise error
        return restored(job=str(request.target))

    def stay(self) -> None:
        """B's memory is resident."""
        (process,) = self.jobs.find("bb").begun
        evict = SimpleNamespace(evict=lambda hold: self.evicted.append(hold) or 5)
        self.there = [SimpleNamespace(hold=process.hold, worker=SimpleNamespace(handles=evict, device="GPU-1"))]

    def swap(self, cancelled: Event | None = None, **body: Any) -> SwapReport:
        request = SwapRequest.from_json({"out": "llm", "in": "bb", **body})
        return Swap(self, request, lambda _target: lambda _report: None, cancelled or Event()).run()  # type: ignore[arg-type]

    @property
    def steps(self) -> list[tuple[str, Any]]:
        return [(what, target) for what, target, _ in self.done]


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "run", Node.checkpoint)
    monkeypatch.setattr(restore, "run", Node.restore)


def test_one_leaves_and_the_other_comes_back_within_one_time() -> None:
    node = Node()
    found = node.swap(timeout=50)
    assert (found.out.job, found.back.job) == ("llm", "bb")
    assert found.out.wall_s > 0
    assert found.back.wall_s > 0
    (_, _, whole), (_, _, rest) = node.done
    assert whole == 50
    assert 0 < rest <= 50
    assert node.steps == [("checkpoint", "llm"), ("restore", "bb")]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"in": "llm", "out": "bb"}, WrongState),
        ({"in": "bb", "out": "bb"}, UsageError),
        ({"in": "bb", "out": 2}, UsageError),
    ],
)
def test_what_cannot_be_a_swap_is_refused_before_anything_is_touched(
    body: dict[str, Any], error: type[GcrError]
) -> None:
    node = Node()
    with pytest.raises(error):
        node.swap(**body)
    assert node.done == []


def test_a_job_that_others_are_busy_with_is_refused() -> None:
    node = Node()
    with node.jobs.find("bb").changing("restore"), pytest.raises(WrongState):
        node.swap()
    assert node.done == []


def test_where_the_second_does_not_come_back_the_first_is_restored_and_both_are_told_of() -> None:
    node = Node(bb=NoRoom("1 GiB short", missing=1 << 30, hint="free some"))
    with pytest.raises(SwapFailed) as caught:
        node.swap(timeout=5)
    assert node.steps == [("checkpoint", "llm"), ("restore", "bb"), ("restore", "llm")]
    assert caught.value.message == "bb could not be restored: 1 GiB short; llm is back and running"
    assert (caught.value.exit, caught.value.state, caught.value.hint) == (4, "running", "free some")
    assert node.done[-1][2] is None, "the way back has a time of its own"


def test_where_neither_comes_back_it_says_so() -> None:
    node = Node(bb=NoRoom("1 GiB short", missing=1), llm=NoRoom("2 GiB short", missing=1, state="suspended"))
    with pytest.raises(SwapFailed) as caught:
        node.swap()
    assert caught.value.message.endswith("llm could not be taken back: 2 GiB short")
    assert (caught.value.state, caught.value.hint) == ("suspended", "gcr restore llm")


def test_a_caller_that_leaves_gets_the_first_job_back_and_a_lost_one_stays_lost() -> None:
    gone = Event()
    gone.set()
    node = Node()
    with pytest.raises(Interrupted) as caught:
        node.swap(gone)
    assert (node.steps[-1], caught.value.exit) == (("restore", "llm"), 130)
    node = Node(bb=Lost("the driver will not"))
    with pytest.raises(Lost):
        node.swap()
    assert node.steps[-1] == ("restore", "llm")


def test_a_job_that_has_everything_back_and_is_silent_is_not_undone() -> None:
    node = Node(bb=Unanswered("it has everything back"))
    with pytest.raises(Unanswered):
        node.swap()
    assert node.steps[-1] == ("restore", "bb")


@pytest.mark.parametrize("failing", ["out_llm", "bb"])
@pytest.mark.parametrize("stayed", [False, True])
def test_nothing_is_left_of_a_head_start_where_the_second_job_does_not_come_back(failing: str, stayed: bool) -> None:
    """But memory that was resident before."""
    node = Node(**{failing: NoRoom("1 GiB short", missing=1)})
    node.ahead = True
    if stayed:
        node.stay()
    with pytest.raises(GcrError):
        node.swap()
    assert len(node.evicted) == (0 if stayed else 1)


def test_no_job_has_a_head_start_on_a_device_that_it_does_not_come_back_to() -> None:
    moved = SwapRequest(out="llm", back="bb", devices={"0": "1"})
    assert (SwapRequest(out="llm", back="bb").checkpoint().then, moved.checkpoint().then) == (NextJob("bb"), None)
