"""Whoever arrives is whole before anybody sees it: commands come at any instant."""

import os
import threading
from types import SimpleNamespace

from gcr.daemon import arrivals as module
from gcr.daemon.agent import AgentPeer
from gcr.daemon.arrivals import Arrivals
from gcr.daemon.jobs import Jobs
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
