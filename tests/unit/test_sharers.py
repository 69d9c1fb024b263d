"""A process is found by the random name under which it shares memory, for a refusal that names it."""

from types import SimpleNamespace

import pytest

from gcr.daemon import sharers
from gcr.daemon.jobs import Job, Jobs
from gcr.engine.joint import Located
from gcr.engine.node import World
from gcr.errors import DeadlinePassed
from gcr.job.process import Process
from gcr.job.states import State
from gcr.peers.shares import Shares
from gcr.processes import ProcessIdentity


@pytest.fixture
def jobs(monkeypatch):
    """Two jobs: `llm` with process 11, named 1; `other` with 12, named 2, 13, which does not answer, and 14."""
    names = {11: Shares(1), 12: Shares(2), 13: DeadlinePassed("it is stopped"), 14: None}

    def shares_of(agent):
        if isinstance(found := names[agent.pid], Exception):
            raise found
        return found

    monkeypatch.setattr(sharers, "shares_of", shares_of)
    monkeypatch.setattr(sharers, "is_stopped", lambda pid: pid == 14)
    made = Jobs()
    for name, pids in (("llm", (11,)), ("other", (13, 14, 12))):
        job = Job(name, name, World("nvidia"))
        for pid in pids:
            status = SimpleNamespace(status=SimpleNamespace(transaction=0))
            agent = SimpleNamespace(pid=pid, status=lambda found=status: found)
            agent.channel = SimpleNamespace(closed=SimpleNamespace(is_set=lambda: False))
            job.processes[pid] = Process(name, ProcessIdentity(pid, 1), State.RUNNING, peer=agent)
        made.add(job)
    made.by_name["llm"].ends.names[5] = 10
    return made


@pytest.mark.parametrize(
    ("name", "pid", "found"),
    [
        (1, 0, Located("llm", 11)),
        (2, 0, Located("other", 12)),
        (2, 11, Located("other", 12)),  # its pid elsewhere is that of another process here
        (9, 13, Located("other", 13)),
        (5, 13, Located("llm", 10, ended=True)),
        (9, 15, None),
        (9, 0, None),
    ],
)
def test_its_name_comes_before_its_pid(jobs, name, pid, found):
    assert sharers.located(jobs, name, pid) == found
