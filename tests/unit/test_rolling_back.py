"""A checkpoint that was never decided, taken back by another daemon than the one that began it."""

import os

import pytest
from sharing_job import DEVICE, MiB, SharingJob

from gcr.engine import rolling_back
from gcr.engine.rolling_back import roll_back
from gcr.errors import DriverError, DriverGone, Lost, NoRoom, PeerGone
from gcr.job.states import State
from gcr.protocol.wire import AgentFlag, AgentPhase

RING = {11: [(12, 1), (13, 2)], 12: [(13, 1)], 13: [(11, 3)]}
OWNS = {11: [1, 2, 3], 12: [1], 13: [1, 2]}


@pytest.fixture
def made(monkeypatch):
    """Makes jobs that were handed over, with all memory in escrow, as a new daemon finds them."""
    monkeypatch.setattr("gcr.job.process.alive", lambda _identity: True)
    jobs = []

    def make(owns=OWNS, holds=RING):
        job = SharingJob(owns, holds)
        jobs.append(job)
        for agent in job.agents.values():
            agent.phase = AgentPhase.HANDED_OVER
            fds = [job.descriptor(memory) for memory in agent.own.values()]
            job.keeper.put(agent.pid, [*agent.own], fds)
            for fd in fds:
                os.close(fd)
            job.target(agent.pid).books.suspended = {DEVICE: len(agent.own) * MiB}
        return job

    yield make
    for job in jobs:
        job.close()


def maps(job: SharingJob) -> list[str]:
    return [each for each in job.said if each.endswith("maps")]


def test_processes_that_share_take_their_own_memory_before_that_of_others(made):
    job = made()
    roll_back(job.targets, [], job.node)
    assert sorted(maps(job)) == ["11 maps", "12 maps", "13 maps"]
    assert all(agent.phase == AgentPhase.RUNNING and agent.has_all for agent in job.agents.values())
    assert {target.process.state for target in job.targets} == {State.RUNNING}


def test_a_process_that_fails_holds_up_those_alone_that_share_with_it(made):
    job = made({11: [1], 12: [1], 13: [1], 14: [1]}, {12: [(11, 1)]})
    job.agents[11].fails = [("give", DriverError("no"))]
    with pytest.raises(DriverError):
        roll_back(job.targets, [], job.node)
    assert [agent.pid for agent in job.agents.values() if agent.phase == AgentPhase.RUNNING] == [13, 14]
    roll_back([job.target(11), job.target(12)], [job.target(13)], job.node)
    assert all(agent.phase == AgentPhase.RUNNING for agent in job.agents.values())


def test_an_owner_that_runs_already_has_its_memory_in_escrow(made):
    job = made()
    for pid in (12, 13):
        job.agents[pid].phase, job.agents[pid].has = AgentPhase.RUNNING, dict(job.agents[pid].own)
    roll_back([job.target(11)], [job.target(12), job.target(13)], job.node)
    assert maps(job) == ["11 maps"]
    assert [job.agents[pid].phase for pid in (12, 13)] == [AgentPhase.RUNNING] * 2


def test_a_process_that_holds_memory_of_one_that_has_ended_stands_still(made):
    job = made()
    with pytest.raises(PeerGone, match=r"process 1[13] holds memory of a process that has ended"):
        roll_back([job.target(11), job.target(13)], [], job.node)
    assert maps(job) == []


def test_a_process_at_a_closed_gate_runs_on_whatever_became_of_others(made):
    job = made()
    job.agents[11].phase = AgentPhase.QUIESCED
    roll_back([job.target(11)], [], job.node)
    assert job.agents[11].phase == AgentPhase.RUNNING
    assert job.said == []


@pytest.mark.parametrize("step", ["thaw", "give"])
def test_a_process_without_a_driver_departs_once_others_have_its_memory(made, monkeypatch, step):
    job, gone = made(), []
    monkeypatch.setattr(rolling_back, "depart", lambda target: gone.append([target.pid, *job.said]))
    job.agents[12].fails = [(step, DriverGone("it ends"))]
    job.dead.add(12)  # it never has its own back
    roll_back(job.targets, [], job.node)
    assert [each[0] for each in gone] == [12]
    assert "11 has 100" in gone[0]
    assert sorted(maps(job)) == ["11 maps", "13 maps"]


def without_keeper(job: SharingJob, staged: int) -> None:
    for pid, agent in job.agents.items():
        job.keeper.forget(pid)
        agent.flags = staged


def test_processes_that_lost_their_keeper_come_back_together_from_staged_copies(made, monkeypatch):
    job, together = made({**OWNS, 14: [1]}, RING), []
    without_keeper(job, AgentFlag.STAGED)
    monkeypatch.setattr(rolling_back.Group, "_refuse_without_bytes", lambda *_: None)
    monkeypatch.setattr(rolling_back, "restore_together", lambda targets, _node: together.append(targets))
    roll_back(job.targets, [], job.node)
    assert sorted([target.pid for target in targets] for targets in together) == [[11, 12, 13], [14]]
    assert job.said == []


def test_those_without_room_stay_suspended(made, monkeypatch):
    job = made()
    without_keeper(job, AgentFlag.STAGED)

    def full(*_):
        raise NoRoom("taken", missing=1)

    monkeypatch.setattr(rolling_back.Group, "_refuse_without_bytes", lambda *_: None)
    monkeypatch.setattr(rolling_back, "restore_together", full)
    roll_back(job.targets, [], job.node)
    assert all(agent.phase == AgentPhase.HANDED_OVER for agent in job.agents.values())


def test_what_was_in_escrow_alone_is_lost_with_it(made):
    job = made()
    without_keeper(job, 0)
    with pytest.raises(Lost, match="in escrow with a supervisor that died too"):
        roll_back(job.targets, [], job.node)
    assert State.LOST in {target.process.state for target in job.targets}
