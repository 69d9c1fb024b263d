"""Contexts that a checkpoint left on the device: which leave for whom, and for how long another program waits."""

import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gcr.daemon import contexts as module
from gcr.daemon.contexts import Contexts
from gcr.daemon.jobs import Job, Jobs
from gcr.daemon.occupied import Occupied
from gcr.engine.node import World
from gcr.errors import DriverError, WrongState
from gcr.job.process import Process
from gcr.job.states import State
from gcr.processes import ProcessIdentity
from gcr.testing.machine import until

ONE, OTHER = "GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"


@pytest.fixture
def occupied() -> Iterator[Occupied]:
    made = Occupied()
    yield made
    os.close(made.fd)


def suspended(jobs: Jobs, name: str, pid: int, device: str = ONE, later: bool = True) -> Job:
    process = Process(name, ProcessIdentity(pid, 1))
    process.suspension.ballast_by_device = {device: 5}
    process.settle(State.DATA_SUSPENDED)
    kind = "context_later" if later else "data_only"
    decision: Any = SimpleNamespace(kind=kind, transaction=pid, away="", image=None)
    job = Job(name, name, World("nvidia"), processes={pid: process}, decision=decision)
    jobs.add(job)
    return job


def leaves(job: Job) -> None:
    """As commands/context.py leaves a job."""
    job.decision = SimpleNamespace(kind="checkpoint", transaction=job.decision.transaction)  # type: ignore
    for process in job.living:
        process.settle(State.SUSPENDED)


def made(occupied: Occupied, save: Callable[[Job], object] = leaves) -> tuple[Jobs, Contexts, list[str]]:
    jobs, told = Jobs(), list[str]()

    def saving(job: Job) -> None:
        told.append(job.name)
        save(job)

    return jobs, Contexts(jobs, occupied, saving), told


def test_those_on_the_device_leave_and_only_where_a_checkpoint_said_that_they_may(occupied: Occupied) -> None:
    jobs, contexts, told = made(occupied)
    for name, pid, device in (("may", 7, ONE), ("elsewhere", 8, OTHER)):
        suspended(jobs, name, pid, device)
    suspended(jobs, "by-hand", 9, later=False)  # with --data-only
    contexts.make_way([ONE])
    assert told == ["may"]
    contexts.make_way_everywhere()
    assert told == ["may", "elsewhere"]
    contexts.make_way_everywhere()
    assert told == ["may", "elsewhere"]


def test_one_follows_its_memory(occupied: Occupied) -> None:
    jobs, contexts, told = made(occupied)
    for name, pid in (("llm", 7), ("other", 8)):
        suspended(jobs, name, pid)
    contexts.follow("8.1")
    contexts.make_way([OTHER])
    until(lambda: told == ["other"], 10, "it leaves")


def test_a_job_that_has_run_since_keeps_its_context(occupied: Occupied) -> None:
    """It was suspended again, with --data-only."""
    jobs, contexts, told = made(occupied)
    job = suspended(jobs, "llm", 7)
    job.decision = SimpleNamespace(kind="data_only", transaction=99)  # type: ignore[assignment]
    contexts.make_way([ONE])
    assert told == []


def test_a_job_that_a_command_is_changing_is_left_alone(occupied: Occupied) -> None:
    """It may be the one that wants the room."""
    jobs, contexts, told = made(occupied)
    job = suspended(jobs, "llm", 7)
    with jobs.changing(job, "restore"):
        contexts.make_way([ONE])
    assert told == []
    contexts.make_way([ONE])
    assert told == ["llm"]


@pytest.mark.parametrize(("error", "again"), [(WrongState("it runs"), 2), (DriverError("no"), 1)])
def test_one_that_cannot_leave_is_not_tried_again_for_each_program(
    occupied: Occupied, error: Exception, again: int
) -> None:
    def fails(_job: Job) -> None:
        raise error

    jobs, contexts, told = made(occupied, fails)
    suspended(jobs, "llm", 7)
    contexts.make_way([ONE])
    contexts.make_way([ONE])
    assert told == ["llm"] * again


def test_a_program_waits_while_one_leaves_and_not_for_ever(occupied: Occupied, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that find no room ask meanwhile."""
    monkeypatch.setattr(module, "LEFT_WITHIN_S", 0.2)
    may_go = threading.Event()

    def slow(job: Job) -> None:
        assert may_go.wait(20)
        leaves(job)

    jobs, contexts, told = made(occupied, slow)
    job = suspended(jobs, "llm", 7)
    contexts.make_way([ONE])
    contexts.make_way([ONE])
    assert (told, job.state, occupied._holders[ONE]) == (["llm"], State.DATA_SUSPENDED, 1)
    monkeypatch.setattr(module, "LEFT_WITHIN_S", 20.0)
    may_go.set()
    contexts.make_way([ONE])
    assert job.state is State.SUSPENDED
    until(lambda: occupied._holders[ONE] == 0, 10, "the mark goes")
