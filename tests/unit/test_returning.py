"""Processes of a container that come back: the names that they are known by, and what is refused untouched."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gcr.api.reports import CheckpointReport
from gcr.api.requests import CheckpointRequest
from gcr.control import ControlMeans
from gcr.daemon.commands import container, returning
from gcr.daemon.jobs import Job
from gcr.engine.node import Course, World
from gcr.errors import UnsupportedState, WrongState
from gcr.imageerrors import NotRestored, WrongImage
from gcr.job.contained import ContainedJob
from gcr.job.decisions import DecisionRecord, KeptImage, ProcessDecision
from gcr.job.process import Process
from gcr.processes import ProcessIdentity

SPACES = {1007: "one", 1008: "one", 2007: "two"}  # of pids, by pid; what is not here is in ours
NIGHT = KeptImage("/store", "night")
REPORT = CheckpointReport(
    job="llm",
    simulated=False,
    state="suspended",
    strategy="handoff",
    bytes=5,
    bytes_copied=5,
    snapshot_bytes=0,
    streamed=False,
    vram_free_s=1.0,
    stop_s=1.0,
    drain_s=1.0,
    drain_bytes_per_s=None,
    control_s=None,
    link_bytes_per_s=None,
    durable_s=None,
    vram_after_bytes=0,
    processes=(),
)


class Node:
    """`means`: of the driver's control"""

    def __init__(self, *jobs: Job, means: ControlMeans = ControlMeans.DRIVER) -> None:
        self.jobs = SimpleNamespace(all=lambda: [*jobs])
        self.control = lambda _world: SimpleNamespace(means=means)


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has processes live that are not there, each in the namespaces of SPACES."""

    def shares(pid: int, _kinds: object, other: int = 0) -> bool:
        return SPACES.get(pid) == SPACES.get(other)

    monkeypatch.setattr(returning, "alive", lambda _identity: True)
    monkeypatch.setattr(returning, "label_of", lambda pid: pid % 1000)
    for module in (container, returning):
        monkeypatch.setattr(module, "shares_namespaces", shares)
    monkeypatch.setattr(returning, "ARRIVE_S", 0.1)


def job(*pids: int, token: str = "t", transaction: int = 9) -> Job:
    made = Job("llm", token, World("nvidia"))
    for pid in pids:
        process = Process("llm", ProcessIdentity(pid, 1))
        hello = SimpleNamespace(token=token, transaction=transaction)
        process.peer = cast("Any", SimpleNamespace(hello=hello, channel=SimpleNamespace(closed=Open())))
        made.processes[pid] = process
    return made


class Open:
    def is_set(self) -> bool:
        return False


def known(*labels: int, away: str = "") -> ContainedJob:
    processes = tuple(ProcessDecision(label, 1, {"GPU-1": 5}, {}) for label in labels)
    record = DecisionRecord("llm", 9, "checkpoint", 1.0, processes, "nvidia", False, away=away)
    return ContainedJob(token="t", argv=("x",), labels=tuple((label, label) for label in labels), decision=record)


def replace_transaction(transaction: int) -> ContainedJob:
    found = known(7)
    return replace(found, decision=replace(found.decision, transaction=transaction))


def arrived(*jobs: Job) -> Job:
    node, course = cast("Any", Node(*jobs)), Course("restore", 1, 60)
    return returning.arrived(node, known(7, 8), "night", course, lambda _owner: True)


def test_a_job_is_there_once_all_its_processes_are() -> None:
    whole = job(1007, 1008)
    assert arrived(job(2007, token="u"), whole) is whole
    with pytest.raises(NotRestored, match="1 of 2 processes of image night") as caught:
        arrived(job(1007))
    assert "runc restore" in (caught.value.hint or "")
    with pytest.raises(NotRestored, match="2 of 2"):
        arrived(job(1007, 1008, token="u"))


def test_a_job_that_is_away_in_place_is_known_by_the_token_in_its_decision() -> None:
    here = job(1007, 1008, token="")
    here.decision = known(7, 8, away="t").decision
    assert arrived(here) is here


def test_processes_of_two_containers_are_not_mixed() -> None:
    for pids in ((1007, 2007), (2007, 1008)):
        with pytest.raises(WrongState, match="in two containers"):
            arrived(job(*pids))


def test_an_image_of_another_suspension_is_refused() -> None:
    other = job(1007, transaction=10)
    other.decision = DecisionRecord("llm", 10, "checkpoint", 1.0, (), "nvidia", False, image=KeptImage("", ""))
    before = other.decision
    with pytest.raises(WrongImage, match="another suspension"):
        returning.take_in(cast("Any", Node()), other, known(7), NIGHT)
    assert other.decision is before


@pytest.mark.parametrize("described", [None, replace_transaction(10)])
def test_an_image_that_is_not_that_of_a_job_in_place_calls_nobody_back(described: ContainedJob | None) -> None:
    here = job(1007)
    here.decision = before = known(7, away="t").decision
    with pytest.raises(WrongImage, match="image noon is of another suspension"):
        returning.call_back(cast("Any", Node()), here, described, "noon")
    assert here.decision is before


@pytest.mark.parametrize("means", [means for means in ControlMeans if means is not ControlMeans.DRIVER])
def test_a_context_that_stays_on_its_device_is_refused(means: ControlMeans) -> None:
    with pytest.raises(UnsupportedState, match="stays on its device"):
        container.begun(cast("Any", Node(means=means)), job(1007), Course("checkpoint", 1, 60))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (job(1007, token=""), "not started by gcr run"),
        (job(5), "process 5 of job llm is in no container"),
        (job(1007, 2007), "in different containers"),
        (job(1007), "has no GCR_SOCKET"),
    ],
)
def test_a_job_that_could_not_come_back_is_refused(made: Job, why: str) -> None:
    with pytest.raises(UnsupportedState, match=why):
        container.refuse_others(made)


def test_a_supervisor_that_cannot_leave_is_refused() -> None:
    made = job(1007)
    made.supervision.supervisor = cast("Any", SimpleNamespace(channel=SimpleNamespace(closed=Open())))
    with pytest.raises(UnsupportedState, match="older gcr"):
        container.refuse_others(made)


def test_a_job_that_is_in_the_image_already_has_its_report_again() -> None:
    made = job(1007)
    made.results.report = report = REPORT
    asked = CheckpointRequest(target="llm", image="night", store="/store", container=True)
    assert container.report_of(made, asked) is None
    made.decision = DecisionRecord("llm", 9, "checkpoint", 1.0, (), "nvidia", False, image=NIGHT, away="t")
    assert container.report_of(made, asked) is report
    other = CheckpointRequest(target="llm", image="noon", store="/store", container=True)
    assert container.report_of(made, other) is None
