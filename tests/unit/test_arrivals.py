"""Whoever arrives is whole before anybody sees it: commands come at any instant."""

import os
import subprocess
import threading
from types import SimpleNamespace

import pytest

from gcr.daemon import arrivals as module
from gcr.daemon.agent import AgentPeer
from gcr.daemon.arrivals import Arrivals
from gcr.daemon.jobs import Job, Jobs
from gcr.engine.node import World
from gcr.errors import PeerGone
from gcr.processes import Place, identify
from gcr.wire import AgentPhase, Vendor

HELLO = SimpleNamespace(token="", job="llm", vendor=Vendor.NVIDIA, phase=AgentPhase.RUNNING, flags=0)


class Peer(AgentPeer):
    def status(self):
        raise PeerGone("says nothing")


def test_no_process_is_seen_without_its_agent(monkeypatch):
    jobs = Jobs()
    arrivals = Arrivals(SimpleNamespace(jobs=jobs))
    seen = []

    def place(_pid):
        seen.append([process.peer for job in jobs.all() for process in job.processes.values()])
        return Place((0, 0, 0, 0), None)

    monkeypatch.setattr(module, "place_of", place)
    channel = SimpleNamespace(closed=threading.Event())
    peer = Peer(channel, identify(os.getpid()), HELLO)
    process = arrivals.agent(peer)
    assert seen == [[]]
    assert process.agent is peer and jobs.by_name["llm"].processes[os.getpid()] is process
    again = Peer(channel, peer.identity, HELLO)
    assert arrivals.agent(again) is process and process.agent is again
    assert len(seen) == 1  # where it was when it was first heard of


@pytest.mark.parametrize("when", ["forget", "close"])
def test_who_comes_while_its_job_is_dropped_is_in_a_job(monkeypatch, when):
    """As the successor of a program that became a daemon, whose parent and supervisor have just ended."""
    jobs = Jobs()
    monkeypatch.setattr(module, "place_of", lambda _pid: Place((0, 0, 0, 0), None))
    peer = Peer(
        SimpleNamespace(closed=threading.Event()),
        identify(os.getpid()),
        SimpleNamespace(**{**vars(HELLO), "token": "t"}),
    )

    def comes(*_):
        coming = threading.Thread(target=arrivals.agent, args=(peer,))
        coming.start()
        coming.join(5)
        assert not coming.is_alive()

    does = {"forget": lambda *_: None, "close": lambda: None, when: comes}
    arrivals = Arrivals(SimpleNamespace(jobs=jobs, journal=SimpleNamespace(forget=does["forget"])))
    job = Job("llm", "t", World("nvidia"), adopted=SimpleNamespace(close=does["close"]))
    jobs.add(job)
    arrivals.finished("t")
    (listed,) = jobs.all()
    assert (listed.name, [*listed.processes]) == ("llm", [os.getpid()])
    assert listed is job or when == "close"


def test_a_job_that_no_supervisor_ever_came_for_ends_with_its_last_process(monkeypatch):
    """As that of an orphan which a new daemon heard of by itself."""
    monkeypatch.setattr(module, "place_of", lambda _pid: Place((0, 0, 0, 0), None))
    nobody = SimpleNamespace(living_workers=list)
    coordinator = SimpleNamespace(jobs=Jobs(), fleet=nobody, forget_decision=lambda _job: None)
    coordinator.journal = SimpleNamespace(forget=lambda _name: None)
    arrivals = Arrivals(coordinator)
    child = subprocess.Popen(["sleep", "60"])
    arrivals.agent(Peer(SimpleNamespace(closed=threading.Event()), identify(child.pid), HELLO))
    coordinator.config = SimpleNamespace(prepare_arena=False)
    arrivals.look_after()
    assert [job.name for job in coordinator.jobs.all()] == ["llm"]
    child.kill()
    child.wait()
    arrivals.look_after()
    assert coordinator.jobs.all() == []
