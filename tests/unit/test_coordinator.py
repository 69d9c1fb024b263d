"""Commands on jobs that are in no state for them."""

import os
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from reported import checkpointed, job_info, restored

from gcr.api.listings import ImageState
from gcr.api.requests import CheckpointRequest, RestoreRequest
from gcr.cli import jobtable
from gcr.config import Config
from gcr.daemon.commands import checkpoint, restore
from gcr.daemon.commands.asked import Asked
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.jobs import Job, Results
from gcr.engine.node import World
from gcr.errors import BackendMissing, JobEnding, WrongState
from gcr.job.decisions import DecisionRecord, ProcessDecision
from gcr.job.journal import Journal
from gcr.job.process import Process
from gcr.job.states import State
from gcr.processes import ProcessIdentity, identify
from gcr.protocol.operations.worker import CopyName

UNUSED = 2**22 - 1
ONE, OTHER = (f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in (1, 2))


def test_a_job_comes_back_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """Processes that an undo did not reach are recovered first."""
    coordinator = Coordinator(Config(), Journal(tmp_path / "journal"))
    job = Job("llm", "", World("nvidia"))
    job.decision = DecisionRecord("llm", 1, "checkpoint", 0.0, (), "nvidia", False)
    for pid, state in ((os.getpid(), State.SUSPENDED), (os.getppid(), State.RESTORING)):
        living = identify(pid)
        assert living
        job.processes[pid] = Process("llm", living, state)
    coordinator.jobs.add(job)
    with pytest.raises(WrongState, match="still being recovered"):
        restore.run(coordinator, RestoreRequest(target="llm"), Asked(lambda _report: None, threading.Event()))
    assert job.processes[os.getpid()].state == State.SUSPENDED


def test_a_job_that_has_ended_off_its_devices_is_told_to_have(tmp_path: Path) -> None:
    """The daemon may hear of the end only by asking."""
    coordinator = Coordinator(Config(), Journal(tmp_path / "journal"))
    job = Job("llm", "", World("nvidia"))
    job.decision = DecisionRecord("llm", 1, "checkpoint", 0.0, (), "nvidia", False)
    job.processes[UNUSED] = Process("llm", ProcessIdentity(UNUSED, 1), State.SUSPENDED)
    coordinator.jobs.add(job)
    with pytest.raises(JobEnding):
        restore.run(coordinator, RestoreRequest(target="llm"), Asked(lambda _report: None, threading.Event()))


@pytest.mark.parametrize(("stack", "stays"), [(5, True), (6, False)])
def test_a_decision_is_forgotten_with_the_program_before_an_exec(tmp_path: Path, stack: int, stays: bool) -> None:
    """The next program has the same pid, and waits at its first call."""
    coordinator = Coordinator(Config(), Journal(tmp_path / "journal"))
    job = Job("llm", "", World("nvidia"))
    known = ProcessDecision(UNUSED, 1, {}, {}, stack=5)
    job.decision = DecisionRecord("llm", 1, "checkpoint", 0.0, (known,), "nvidia", False)
    coordinator.journal.decide(job.decision)
    job.processes[UNUSED] = Process("llm", ProcessIdentity(UNUSED, 1, stack), State.SUSPENDED, waits=True)
    coordinator.forget_decision(job)
    assert (job.decision is not None, coordinator.journal.record("llm") is not None) == (stays, stays)


@pytest.mark.parametrize(("command", "kind"), [(checkpoint, CheckpointRequest), (restore, RestoreRequest)])
def test_a_backend_that_is_not_the_job_s_is_refused(tmp_path: Path, command: Any, kind: Any) -> None:
    coordinator = Coordinator(Config(), Journal(tmp_path / "journal"))
    coordinator.jobs.add(Job("llm", "", World("nvidia")))
    with pytest.raises(BackendMissing, match="llm uses nvidia, not amd"):
        command.run(coordinator, kind(target="llm", backend="amd"), Asked(lambda _report: None, threading.Event()))


def test_a_report_that_tells_more_replaces_the_last_one_alone() -> None:
    results, last = Results(), checkpointed()
    results.report = last
    results.amend(last, more := checkpointed(image="warm"))
    assert results.report is more
    results.report = back = restored()
    results.amend(more, last)
    assert results.report is back


def asked_for(*states: str) -> list[Mock]:
    """Returns images of these states, asked for one after the other."""
    return [Mock(state=state, order=Mock(began=float(began))) for began, state in enumerate(states)]


def test_the_last_image_is_that_of_the_last_cut_also_where_it_is_written_first() -> None:
    job, (first, second) = Job("llm", "", World("nvidia")), asked_for("writing", "durable")
    job.results.add(second)
    job.results.add(first)
    assert (job.results.images, job.results.imaging) == ([first, second], second)
    first.state = "failed"
    job.results.add(first)
    assert job.results.images == [second]


def test_the_last_report_is_that_of_the_command_that_began_last() -> None:
    results = Results()
    for name, began in (("first", 1.0), ("third", 3.0), ("second", 2.0), ("fourth", 4.0)):
        results.tell(checkpointed(job=name), began)
        assert results.report == checkpointed(job="third" if name == "second" else name)


def test_an_image_that_is_being_written_is_told_after_another_was_asked_for() -> None:
    """And one that is on disk, or failed before, no longer is."""
    job, (first, second, third) = Job("llm", "", World("nvidia")), asked_for("writing", "durable", "writing")
    for each in (first, second, third, third):
        job.results.add(each)
    assert job.results.images == [first, third]
    assert job.results.imaging is third
    states = {"warm": "failed", "last": "durable", "next": "writing"}
    rows = tuple(ImageState(name=name, state=state, durable_s=None, error=None) for name, state in states.items())
    assert jobtable._of_job(job_info(images=rows)) == ["image warm NOT WRITTEN", "image next being written"]


def test_a_worker_of_gcr_s_own_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be all that keeps a process from its device."""
    coordinator = Coordinator(Config(), Journal(tmp_path / "journal"))
    world = World("nvidia")
    monkeypatch.setattr(
        type(coordinator.fleet), "worker_of", lambda _fleet, pid: (world, "GPU-1") if pid == 7 else None
    )
    assert coordinator.who(7) == "process 7, a worker of gcr's, which ends when idle (setting worker_idle_s)"
    assert coordinator.who(8) == "process 8"
    coordinator.jobs.add(Job("llm", "", world))
    with coordinator.jobs.all()[0].changing("restore"):
        assert coordinator.who(7) == "process 7, a worker of gcr's for job llm"


def test_an_idle_worker_stays_while_it_may_have_memory_of_a_suspended_job(tmp_path: Path) -> None:
    coordinator, world = Coordinator(Config(), Journal(tmp_path / "journal")), World("nvidia")
    assert not coordinator.keeps_worker(world, ONE)
    worker = Mock(device=ONE)
    coordinator.stay(worker, CopyName("7.1", 9))
    assert coordinator.keeps_worker(world, ONE)
    assert not coordinator.keeps_worker(world, OTHER)
    assert not coordinator.needs_worker(world, ONE)  # it leaves the device to a job all the same
