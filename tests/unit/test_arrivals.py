"""A process that arrives is complete before a command sees it: commands come at any instant."""

import os
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest

from gcr.daemon import arrivals as module
from gcr.daemon import upkeep
from gcr.daemon.arrivals import Arrivals
from gcr.daemon.jobs import Job, Jobs
from gcr.daemon.supervision import Supervision
from gcr.engine.node import World
from gcr.errors import PeerGone
from gcr.job.process import Process
from gcr.job.states import State
from gcr.peers.agent import AgentPeer
from gcr.processes import FileAccess, ProcessIdentity, identify, started_at
from gcr.protocol.operations.daemon import Register
from gcr.protocol.wire import AgentFlag, AgentPhase, Vendor

HELLO = SimpleNamespace(token="", job="llm", vendor=Vendor.NVIDIA, phase=AgentPhase.RUNNING, flags=0)


class Peer(AgentPeer):
    hand_over_s: float = 60.0

    def status(self):
        raise PeerGone("says nothing")


def not_waiting(wait: bool) -> None:
    """A welcome."""
    assert not wait


class Evictions:
    """Resident memory, and contexts. `count`: of calls that all of it leave."""

    def __init__(self) -> None:
        self.count = 0

    def free_all(self) -> None:
        self.count += 1

    def make_way_everywhere(self) -> None:
        """Contexts leave after memory, which has told the daemon of them."""
        assert self.count == 1
        self.count += 1


def job_of(jobs: Jobs, off_its_devices: bool) -> Job:
    decision = SimpleNamespace(processes=()) if off_its_devices else None
    job = Job("llm", "", World("nvidia"), decision=decision)
    jobs.add(job)
    return job


@pytest.mark.parametrize("off", [False, True])
@pytest.mark.parametrize("fresh", [False, True])
def test_the_first_call_of_a_newcomer_waits_while_its_job_is_off_its_devices(monkeypatch, off, fresh):
    jobs, told = Jobs(), []
    monkeypatch.setattr(module, "file_access", lambda _pid: FileAccess((0, 0, 0, 0), None))
    evictions = Evictions()
    arrivals, job = Arrivals(SimpleNamespace(jobs=jobs, residents=evictions, contexts=evictions)), job_of(jobs, off)
    hello = SimpleNamespace(**{**vars(HELLO), "flags": AgentFlag.FRESH if fresh else 0})
    channel = SimpleNamespace(closed=threading.Event(), peer=SimpleNamespace(uid=os.getuid()))
    peer = Peer(channel, identify(os.getpid()), hello)
    process = arrivals.agent(peer, told.append)
    assert told == [off and fresh] == [process.waits]
    assert process.suspension.was_saved is not fresh, "a former daemon may have suspended it"
    assert process.state == (State.SUSPENDED if process.waits else State.RUNNING)
    assert job.begun == ([] if process.waits else [process])
    assert evictions.count == 2 * fresh  # no program of the job has begun before, which may look for free memory


def test_what_waits_begins_once_the_job_runs(monkeypatch):
    """A process that has not come to its first call is let go of: it waits for nothing."""
    begun, jobs = threading.Event(), Jobs()
    job = job_of(jobs, off_its_devices=True)
    peer = SimpleNamespace(
        channel=SimpleNamespace(closed=threading.Event(), peer=SimpleNamespace(uid=os.getuid())), begin=begun.set
    )
    for pid, its in ((1, peer), (2, None)):
        identity = ProcessIdentity(pid, 1)
        job.processes[pid] = Process("llm", identity, _state=State.SUSPENDED, peer=its, waits=True)
    assert job.state == State.SUSPENDED
    jobs.let_begin(job)
    assert not begun.is_set()
    with jobs.changing(job, "restore"):
        job.decision = None
        assert job.holds_newcomers
    assert begun.wait(10)
    assert {pid: (p.state, p.waits) for pid, p in job.processes.items()} == {1: (State.RUNNING, False)}


def test_no_process_is_seen_without_its_agent(monkeypatch):
    jobs = Jobs()
    arrivals = Arrivals(SimpleNamespace(jobs=jobs))
    seen = []

    def place(_pid):
        seen.append([process.peer for job in jobs.all() for process in job.processes.values()])
        return FileAccess((0, 0, 0, 0), None)

    monkeypatch.setattr(module, "file_access", place)
    channel = SimpleNamespace(closed=threading.Event(), peer=SimpleNamespace(uid=os.getuid()))
    peer = Peer(channel, identify(os.getpid()), HELLO)
    process = arrivals.agent(peer, not_waiting)
    assert seen == [[]]
    assert process.agent is peer and jobs.by_name["llm"].processes[os.getpid()] is process
    again = Peer(channel, peer.identity, HELLO)
    assert arrivals.agent(again, not_waiting) is process and process.agent is again
    assert len(seen) == 1  # where it was when it was first heard of


@pytest.mark.parametrize("when", ["forget", "close"])
def test_a_process_that_comes_while_its_job_is_dropped_is_in_a_job(monkeypatch, when):
    """It succeeds a program that became a daemon; parent and supervisor have just ended."""
    jobs = Jobs()
    monkeypatch.setattr(module, "file_access", lambda _pid: FileAccess((0, 0, 0, 0), None))
    peer = Peer(
        SimpleNamespace(closed=threading.Event(), peer=SimpleNamespace(uid=os.getuid())),
        identify(os.getpid()),
        SimpleNamespace(**{**vars(HELLO), "token": "t"}),
    )

    def comes(*_):
        coming = threading.Thread(target=arrivals.agent, args=(peer, not_waiting))
        coming.start()
        coming.join(5)
        assert not coming.is_alive()

    does = {"forget": lambda *_: None, "close": lambda: None, when: comes}
    arrivals = Arrivals(SimpleNamespace(jobs=jobs, journal=SimpleNamespace(forget=does["forget"])))
    job = Job("llm", "t", World("nvidia"), supervision=Supervision(adopted=SimpleNamespace(close=does["close"])))
    jobs.add(job)
    arrivals.finished("t")
    (listed,) = jobs.all()
    assert (listed.name, [*listed.processes]) == ("llm", [os.getpid()])
    assert listed is job or when == "close"


def test_a_job_that_no_supervisor_ever_came_for_ends_with_its_last_process(monkeypatch):
    """The job is that of an orphan, known to a new daemon by its agent alone."""
    monkeypatch.setattr(module, "file_access", lambda _pid: FileAccess((0, 0, 0, 0), None))
    nobody = SimpleNamespace(living_workers=list)
    coordinator = SimpleNamespace(jobs=Jobs(), fleet=nobody, forget_decision=lambda _job: None)
    coordinator.journal = SimpleNamespace(forget=lambda _name: None, record=lambda _name: None)
    arrivals = Arrivals(coordinator)
    child = subprocess.Popen(["sleep", "60"])
    channel = SimpleNamespace(closed=threading.Event(), peer=SimpleNamespace(uid=os.getuid()))
    arrivals.agent(Peer(channel, identify(child.pid), HELLO), not_waiting)
    coordinator.config = SimpleNamespace(prepare_arena=False, job_log_bytes=1 << 20)
    arrivals.look_after()
    assert [job.name for job in coordinator.jobs.all()] == ["llm"]
    child.kill()
    child.wait()
    arrivals.look_after()
    assert coordinator.jobs.all() == []


@pytest.mark.parametrize("late", [False, True])
def test_a_recovery_sees_processes_that_came_while_it_waited(monkeypatch, late):
    """One wait for all of them; one more for a process that comes during the attempt."""
    monkeypatch.setattr(module, "file_access", lambda _pid: FileAccess((0, 0, 0, 0), None))
    hello = SimpleNamespace(**{**vars(HELLO), "phase": AgentPhase.HANDED_OVER})
    channel = SimpleNamespace(closed=threading.Event(), peer=SimpleNamespace(uid=os.getuid()))
    peer, happened = Peer(channel, identify(os.getpid()), hello), []

    def happens(what, comes):
        if what not in happened and comes:
            arrivals.agent(peer, not_waiting)
        happened.append(what)
        return True

    coordinator = SimpleNamespace(jobs=Jobs(), recovery=SimpleNamespace(tried=lambda _job: happens("try", late)))
    arrivals, job = Arrivals(coordinator), job_of(coordinator.jobs, True)
    arrivals._wait_together = lambda _job: happens("wait", not late)
    job.turn.recovery_due = True
    job.turn.settled.clear()
    arrivals._recover(job)
    assert happened == ["wait", "try"] * (1 + late)
    assert job.turn.settled.is_set() and not job.turn.recovery_due


def test_a_recovery_goes_on_as_soon_as_the_last_agent_has_come(monkeypatch):
    """A restore waits for it."""
    monkeypatch.setattr(module, "file_access", lambda _pid: FileAccess((0, 0, 0, 0), None))
    monkeypatch.setattr(module, "POLL", 60.0)
    monkeypatch.setattr(module, "TOGETHER_WITHIN", 60.0)
    jobs = Jobs()
    arrivals, job = Arrivals(SimpleNamespace(jobs=jobs)), job_of(jobs, off_its_devices=True)
    job.supervision.supervisor = SimpleNamespace(channel=SimpleNamespace(closed=threading.Event()))
    identity = identify(os.getpid())
    job.processes[identity.pid] = Process("llm", identity, _state=State.SUSPENDED)
    waiting = threading.Thread(target=arrivals._wait_together, args=(job,), daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    channel = SimpleNamespace(closed=threading.Event(), peer=SimpleNamespace(uid=os.getuid()))
    arrivals.agent(Peer(channel, identity, HELLO), not_waiting)
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.parametrize("state", [State.RUNNING, State.SUSPENDED])
def test_a_process_that_comes_in_the_middle_of_a_command_is_recovered_after_it(monkeypatch, state):
    """No journal knows it, and it comes while another command has the turn. A process that is suspended is at rest."""
    monkeypatch.setattr(module, "file_access", lambda _pid: FileAccess((0, 0, 0, 0), None))
    tried, over = [], threading.Event()

    def attempt(job):
        tried.append([*job.processes])
        over.set()
        return True

    coordinator = SimpleNamespace(jobs=Jobs(), recovery=SimpleNamespace(tried=attempt))
    arrivals, job = Arrivals(coordinator), job_of(coordinator.jobs, False)
    arrivals._wait_together = lambda _job: None
    hello = SimpleNamespace(**{**vars(HELLO), "phase": AgentPhase.HANDED_OVER})
    channel = SimpleNamespace(closed=threading.Event(), peer=SimpleNamespace(uid=os.getuid()))
    with coordinator.jobs.changing(job, "checkpoint"):
        process = arrivals.agent(Peer(channel, identify(os.getpid()), hello), not_waiting)
        assert job.turn.settled.is_set() and not tried
        if state != State.RUNNING:
            process.settle(state)
    assert over.wait(10 if state == State.RUNNING else 0.2) == (state == State.RUNNING)
    assert job.turn.settled.wait(10) and not job.turn.recovery_due
    assert tried == [[os.getpid()]] * (state == State.RUNNING)


@pytest.mark.parametrize("ends", [False, True])
def test_nothing_is_prepared_for_a_process_that_ended_meanwhile(ends):
    asked, process = [], Process("llm", ProcessIdentity(7, 1))

    def prepare(hold, nbytes):
        asked.append(("prepare", hold))
        if ends:
            process.end()

    worker = SimpleNamespace(pid=8, prepare=prepare, forfeit=lambda hold: asked.append(("forfeit", hold)))
    coordinator = SimpleNamespace(jobs=Jobs(), warm_worker=lambda *_: None, worker=lambda *_: worker)
    upkeep._prepare_device(coordinator, Job("llm", "", World("nvidia")), process, "GPU-1", 1 << 20)
    assert asked == [("prepare", "7.1"), ("forfeit", "7.1")][: 1 + ends]


def test_a_job_is_as_old_as_its_program_whichever_daemon_is_asked():
    child = subprocess.Popen(["sleep", "60"])
    try:
        began = started_at(child.pid)
        time.sleep(1.1)
        ages = []
        for pid in (None, child.pid):  # a daemon that saw it start, and one that came later
            arrivals = Arrivals(SimpleNamespace(jobs=Jobs()))
            peer = SimpleNamespace(pid=os.getpid(), channel=SimpleNamespace(peer=SimpleNamespace(uid=os.getuid())))
            job = arrivals.supervisor(peer, Register("t" * 32, ("sleep",), "llm", pid))
            arrivals.started("t" * 32, child.pid, os.getpid())
            ages.append(job.program.started)
    finally:
        child.kill()
        child.wait()
    assert ages == pytest.approx([began, began], abs=0.05)
