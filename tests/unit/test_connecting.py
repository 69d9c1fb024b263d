"""A command on a suspended job waits for agents that are about to connect, and for no other."""

import os
import time
from threading import Event, Timer
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.daemon.commands import connecting as module
from gcr.daemon.commands.connecting import await_agents
from gcr.daemon.jobs import Job, Jobs
from gcr.engine.admit import refuse_unconnected
from gcr.engine.node import Course, World
from gcr.errors import DeadlinePassed, PeerGone, WrongState
from gcr.job.process import Process
from gcr.job.states import State
from gcr.processes import identify


def peer(closed: bool = False) -> Any:
    made = SimpleNamespace(channel=SimpleNamespace(closed=Event()))
    if closed:
        made.channel.closed.set()
    return made


@pytest.fixture
def process() -> Process:
    identity = identify(os.getpid())
    assert identity
    return Process("llm", identity, _state=State.SUSPENDED)


@pytest.fixture
def job(process: Process) -> Job:
    decision = cast("Any", SimpleNamespace(away="", kind="suspended"))
    return Job("llm", "", World("nvidia"), processes={process.identity.pid: process}, decision=decision)


def waited(job: Job, timeout: float = 60.0) -> float:
    """Seconds."""
    began = time.monotonic()
    await_agents(cast("Any", SimpleNamespace(jobs=Jobs())), job, Course("restore", 1, timeout))
    return time.monotonic() - began


@pytest.mark.parametrize("former", [None, peer(closed=True)], ids=["of a former daemon", "closed"])
def test_it_waits_until_the_agent_has_connected(job: Job, process: Process, former: Any) -> None:
    process.peer = former
    coming = Timer(0.1, lambda: setattr(process, "peer", peer()))
    coming.start()
    assert 0.05 < waited(job) < module.CONNECT_S
    assert process.connected
    refuse_unconnected(cast("Any", SimpleNamespace(process=process, pid=process.identity.pid)))


def test_a_command_that_waits_for_the_agent_in_vain_is_refused(
    job: Job, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DeadlinePassed):
        waited(job, timeout=0.05)
    monkeypatch.setattr(module, "CONNECT_S", 0.05)
    assert waited(job) >= 0.05
    with pytest.raises(WrongState, match="has not connected") as refused:
        refuse_unconnected(cast("Any", SimpleNamespace(process=process, pid=process.identity.pid)))
    assert refused.value.state == State.SUSPENDED


@pytest.mark.parametrize("why", ["running", "away", "driver", "stopped"])
def test_it_waits_for_no_agent_that_does_not_come_by_itself(
    job: Job, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "running":
        job.decision = None
    if why == "away":
        cast("Any", job.decision).away = "token"
    if why == "driver":
        cast("Any", job.decision).kind = "driver"
    if why == "stopped":
        monkeypatch.setattr(module, "is_stopped", lambda _pid: True)
    monkeypatch.setattr(module, "CONNECT_S", 30.0)
    assert waited(job) < 20.0


def test_the_error_names_no_state_in_the_middle_of_a_command(process: Process) -> None:
    """The command that fails has it say where it leaves the job (commands/transaction.py)."""
    process.move(State.RESTORING)
    with pytest.raises(PeerGone) as gone:
        _ = process.agent
    assert gone.value.state is None
