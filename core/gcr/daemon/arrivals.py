"""Arrivals and departures of supervisors and agents, and the effect of a departure on its job.

A new daemon learns everything here: supervisors register again, agents report their phase, and the journal has the
decisions (survivors.py). A job with a stranded process is recovered once its supervisor and processes are
back, or after a time limit.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import chain

from gcr.api.jobevents import JobEnded, ProcessAttached, ProcessEnded, SupervisorGone
from gcr.daemon import first_call, orphans, outputs, reports, survivors, upkeep
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.ended import note_job_end
from gcr.daemon.foreign import world_of_process
from gcr.daemon.jobs import Job, Jobs, Program
from gcr.daemon.permission import Caller
from gcr.daemon.recall import recall_program
from gcr.daemon.registration import Registration, own_pid, registration
from gcr.declarations import declarations
from gcr.engine.node import World
from gcr.engine.tidying import quietly
from gcr.errors import GcrError, NameTaken, WrongState
from gcr.job import runs
from gcr.job.process import Process
from gcr.job.states import State
from gcr.job.suspension import Suspension
from gcr.names import JOB_NAME
from gcr.peers.agent import AgentPeer
from gcr.peers.shares import shares_of
from gcr.peers.supervisor import SupervisorPeer
from gcr.processes import ProcessIdentity, alive, file_access, identify, started_at
from gcr.protocol.channel import Channel
from gcr.protocol.operations.daemon import LastFacts, Register
from gcr.protocol.wire import AgentFlag, AgentPhase
from gcr.rendezvous.away import unmark_all
from gcr.runtime import socket_path

log = logging.getLogger("gcr.daemon")

TOGETHER_WITHIN = 5.0  # a restarted daemon waits so long for supervisor and agents to come back
POLL = 0.05

Told = Callable[[ProcessIdentity], object]


def _ignore(_identity: ProcessIdentity) -> None:
    """Does nothing: for a daemon that leaves nothing to a successor."""


class Arrivals:
    """`come` and `gone` are told of each process that is under this daemon, and of its end."""

    def __init__(self, coordinator: Coordinator, come: Told = _ignore, gone: Told = _ignore) -> None:
        self._coordinator, self._come, self._gone = coordinator, come, gone
        self._jobs = coordinator.jobs
        self._lock = threading.RLock()
        self._arrived = threading.Event()  # a peer, of any job
        self._ending = threading.RLock()  # before the others; held until nothing of a dead process is left

    def load_journal(self) -> None:
        """Learns of the jobs that were suspended when the last daemon ended, and calls back what it sent away."""
        survivors.load_journal(self._coordinator, self.begin_recovery)
        away = {job.decision.away: job for job in self._jobs.all() if job.decision and job.decision.away}
        unmark_all(socket_path(), away)
        for process in chain.from_iterable(job.living for job in away.values()):
            self._come(process.identity)  # no command waits for it

    # ---- supervisors ------------------------------------------------------------------------------------------

    def supervisor(self, peer: SupervisorPeer, told: Register) -> Job:
        """Raises UsageError, NameTaken, and NotOurs for another user's job or a simulated one of another user."""
        asked = registration(told, peer.channel.peer.uid, peer.pid)
        with self._lock, self._jobs.lock:
            job = self._jobs.with_token(asked.token) or self._journaled(asked)
            if job is None:
                name = asked.name or self._jobs.free_name(asked.argv)
                job = Job(name, asked.token, asked.world, owner=asked.owner)
                self._jobs.add(job)
            Caller(asked.owner).check_owner(job.owner, f"job {job.name}")
            job.supervision.supervisor, job.program.argv, job.token = peer, asked.argv, asked.token
            job.supervision.parks, job.supervision.parked = asked.parks, asked.parked
            job.supervision.leaves, job.supervision.sent_away = asked.leaves, False
            job.supervision.revives = asked.revives
            if asked.pid:
                job.program.runs_as(asked.pid)
            if identity := identify(peer.pid):
                self._come(identity)
        self._arrived.set()
        if job.begun:  # their agents were faster
            threading.Thread(target=self._make_up_all, args=(job,), name="gcr-make-up", daemon=True).start()
        return job

    def _journaled(self, asked: Registration) -> Job | None:
        """Returns a job known only from the journal: it belongs to the supervisor that runs one of its processes."""
        job = self._jobs.by_name.get(asked.name or "")
        if job is None or job.token or job.supervision.lasts:
            return None
        if not asked.runs:
            raise NameTaken(f"there is a job {job.name!r} already, suspended", hint="another --name; gcr ps")
        return job

    def started(self, token: str, pid: int, supervisor: int) -> None:
        job = self._jobs.with_token(token)
        if job and (own := own_pid(pid, job.owner, supervisor)):
            job.program.runs_as(own)
            job.supervision.revives = False

    def finished(self, token: str) -> LastFacts:
        """The program ended; its job does too, unless processes of it live on. Returns its last report and state."""
        job = self._jobs.with_token(token)
        if job is None:
            return LastFacts()
        job.ends.finished = job.ends.told = True
        was = job.was
        self._drop_if_over(job)
        report = job.results.report
        told, kept = report.to_json() if report else None, job.ends.stopped_into
        return LastFacts(told, _was(job, was), kept.name if kept else None, kept.store if kept else None)

    def supervisor_left(self, job: Job) -> None:
        if not (job.ends.finished or job.supervision.sent_away):
            self._jobs.history.note(job.owner, SupervisorGone(job=job.name))
        if job.living:  # it died while it brought them back: they are here, suspended
            job.supervision.parked = None
        job.ends.finished = job.ends.finished or not any(alive(p.identity) for p in job.living)
        self._drop_if_over(job)

    # ---- agents -----------------------------------------------------------------------------------------------

    def agent(self, peer: AgentPeer, welcome: Callable[[bool], None]) -> Process:
        """Takes in a process that said HELLO: for the first time, again, or to a new daemon.

        `welcome` answers it, told whether its first call is to wait. Raises PeerGone if the process takes no answer.
        """
        self._end_former(peer.identity)
        if peer.hello.flags & AgentFlag.FRESH:
            node = self._coordinator
            first_call.free_devices(self._jobs, peer.hello.token, node.residents, node.contexts)
        with self._lock, self._jobs.lock:
            job = self._job_of(peer)
            pid = peer.identity.pid
            if not job.begun:
                job.world = _world_as_seen(job.world, peer.hello.vendor)
            process, fresh = job.processes.get(pid), bool(peer.hello.flags & AgentFlag.FRESH)
            known = process is not None and process.peer is not None and process.identity.is_same(peer.identity)
            if process is None or not process.identity.is_same(peer.identity):
                process = Process(job.name, peer.identity, suspension=Suspension(was_saved=not fresh))
            waits = fresh and job.holds_newcomers
            welcome(waits)  # under the lock: a checkpoint that begins later finds the process
            if waits and not process.waits:
                process.settle(State.SUSPENDED)
            elif process.waits and not waits:
                process.settle(State.RUNNING)
            process.waits = waits
            process.peer, process.file_access = peer, process.file_access or file_access(pid)
            job.processes[pid] = process  # only now: a command may come at once
            self._arrived.set()
            self._come(peer.identity)
            if stranded(peer):
                self.begin_recovery(job)
        if not known:
            self._jobs.history.note(job.owner, ProcessAttached(job=job.name, pid=pid, backend=job.world.backend))
        threading.Thread(target=self._settle_in, args=(process,), name="gcr-hello", daemon=True).start()
        return process

    def _end_former(self, newcomer: ProcessIdentity) -> None:
        """Ends the former process of this pid, or this one before an exec: its ids mean nothing to the newcomer."""
        for job in self._jobs.all():
            process = job.processes.get(newcomer.pid)
            if process is not None and not process.identity.is_same(newcomer):
                self._ended(process)

    def _job_of(self, peer: AgentPeer) -> Job:
        job = self._jobs.with_token(peer.hello.token) if peer.hello.token else None
        if job is None:
            named = self._jobs.by_name.get(peer.hello.job)
            known = named is not None and (not named.token or peer.identity.pid in named.processes)
            if named is not None and known and Caller(peer.channel.peer.uid).may_use(named.owner):
                job = named
        if job is None:  # its supervisor has not come back, or never will
            began, uid = started_at(peer.identity.pid), peer.channel.peer.uid
            world = world_of_process(peer.identity.pid)
            job = Job(self._name_for(peer), peer.hello.token, world, owner=uid, program=Program(started=began))
            self._jobs.add(job)
        return job

    def _name_for(self, peer: AgentPeer) -> str:
        name = peer.hello.job
        free = JOB_NAME.match(name) and name not in self._jobs.by_name
        return name if free else self._jobs.free_name((name or "job",))

    def _settle_in(self, process: Process) -> None:
        job = self._jobs.by_name.get(process.job)
        if job is not None and job.supervision.supervisor is None:
            recall_program(job)
        try:
            process.look()
            process.seen.shares = shares_of(process.agent)  # its name, which others may still know after its end
            self._make_up(process)
        except GcrError as error:
            log.info("job %s: process %d: %s", process.job, process.identity.pid, error)

    def _make_up(self, process: Process) -> None:
        job = self._jobs.by_name.get(process.job)
        if job is not None:
            job.supervision.make_up(job.name, process.identity.pid, self._coordinator.config.batch)

    def _make_up_all(self, job: Job) -> None:
        orphans.forget_unneeded(job)
        for process in job.begun:
            quietly("duplicates handed on", partial(job.hand_on, process, self._coordinator.config.batch))
            quietly("duplicates made up", partial(self._make_up, process))

    def begin_recovery(self, job: Job) -> None:
        """Recovers in the background, once all its peers are back; until then nothing else begins on this job.

        While a command has the turn it waits for the end of that, and does nothing for processes that it has brought
        to where they belong.
        """
        with self._lock:
            job.turn.recovery_due = True

        def start(after_command: bool) -> None:
            with self._lock:
                if not (job.turn.recovery_due and job.turn.settled.is_set()):
                    return
                if after_command and not any(map(_is_overlooked, job.living)):
                    job.turn.recovery_due = False
                    return
                job.turn.settled.clear()
                threading.Thread(target=self._recover, args=(job,), name="gcr-recover", daemon=True).start()

        job.turn.once_free(start)

    def _recover(self, job: Job) -> None:
        """Repeats until no process came meanwhile: without a journal their number is not known."""
        done = False
        try:
            while self._more_to_recover(job):
                self._wait_together(job)
                with self._lock:
                    job.turn.recovery_due = False  # processes that came so far are seen by the attempt
                done = self._coordinator.recovery.tried(job)
        finally:
            job.turn.settled.set()
        if not done:
            self._coordinator.recovery.begin(job)

    def _more_to_recover(self, job: Job) -> bool:
        with self._lock:
            due, job.turn.recovery_due = job.turn.recovery_due, False
            if not due:
                job.turn.settled.set()
            return due

    def _wait_together(self, job: Job) -> None:
        end = time.monotonic() + TOGETHER_WITHIN
        while time.monotonic() < end:
            self._arrived.clear()
            missing = [p for p in job.begun if p.peer is None and alive(p.identity)]
            if job.supervision.lasts and not missing:
                return
            self._arrived.wait(POLL)

    def agent_left(self, process: Process, channel: Channel) -> None:
        """Handles the end of an agent's connection: its process has ended, or connects again."""
        if process.peer is None or process.peer.channel is not channel:
            return
        end = time.monotonic() + TOGETHER_WITHIN
        while alive(process.identity) and time.monotonic() < end:
            if process.peer.channel is not channel:
                return
            time.sleep(POLL)
        if not alive(process.identity):
            self._ended(process)

    def _ended(self, process: Process) -> None:
        """Everything of a dead process is released, once: a successor may have its pid."""
        with self._ending:
            was = process.end()
            self._jobs.standing.drop(process)
            self._gone(process.identity)
            job = self._jobs.by_name.get(process.job)
            if job is not None and job.processes.get(process.identity.pid) is process:
                ended = ProcessEnded(job=job.name, pid=process.identity.pid, state=reports.shown(was))
                self._jobs.history.note(job.owner, ended)
                if name := process.seen.shares.process:
                    job.ends.names[name] = process.identity.pid
                if was not in (State.RUNNING, State.EXITED):
                    job.ends.states[process.identity.pid] = was
                self._release(job, process)

    def _release(self, job: Job, process: Process) -> None:
        job.ends.orphans[process.identity.pid] = process
        job.processes.pop(process.identity.pid, None)
        job.ends.count += 1
        orphans.settle(self._coordinator, job)
        if not job.busy:
            self._coordinator.forget_decision(job)
        self._drop_if_over(job)

    def _drop_if_over(self, job: Job) -> None:
        """Removes a job after its last process: once that is gone, no other event would release its memory."""
        with self._lock, self._jobs.lock:  # without a supervisor no other peer says so
            job.ends.finished = job.ends.finished or not (job.supervision.lasts or job.processes)
        if not job.ends.finished or job.busy or any(alive(p.identity) for p in job.living):
            return
        if unheard := job.living:  # of their end
            for process in unheard:
                self._ended(process)
            return
        self._coordinator.journal.forget(job.name)  # while no other job can have the name
        with self._lock, self._jobs.lock:
            if job.living:  # a process came meanwhile: a program that became a daemon is just another process of it
                return
            removed = self._jobs.remove(job)
        if removed:
            self._jobs.history.note(job.owner, JobEnded(job=job.name, state=_was(job, job.was)))
        job.supervision.adopted.close()
        if not job.ends.told:
            note_job_end(job.name, job.token, _was(job, job.was), job.ends.stopped_into)

    # ---- regularly --------------------------------------------------------------------------------------------

    def look_after(self) -> None:
        """Forget jobs that ended unseen; keep the arenas as large as the jobs' device memory. Raises nothing."""
        for job in self._jobs.all():
            try:
                self._look_after(job)
            except Exception:  # of this job: the others are looked after all the same
                log.exception("looking after job %s", job.name)

    def settle(self, job: Job) -> None:
        """Releases what processes of a job held that have ended, and the job after its last one."""
        for process in list(job.processes.values()):
            if process.ended:
                self._ended(process)
        with self._ending:
            orphans.settle(self._coordinator, job)
        self._drop_if_over(job)

    def _look_after(self, job: Job) -> None:
        self.settle(job)
        self._jobs.let_begin(job)
        outputs.bound(job, self._coordinator.config.job_log_bytes)
        upkeep.end_standing(self._jobs, job)
        if self._coordinator.config.prepare_arena and not job.busy:
            upkeep.prepare_arena(self._coordinator, job)


def check_stoppable(jobs: Jobs, force: bool) -> None:
    """Raises WrongState while jobs are suspended, unless `force`."""
    held = [job.name for job in jobs.all() if job.state not in (State.RUNNING, State.EXITED)]
    if held and not force:
        raise WrongState(
            f"jobs are suspended: {', '.join(held)}",
            hint=f"gcr restore {' '.join(held)}; or gcr daemon stop --force",
        )


def _was(job: Job, state: State) -> str:
    """Returns the state of a job at its end, in words."""
    return runs.STOPPED if job.ends.stopped_into else reports.shown(state)


def stranded(peer: AgentPeer) -> bool:
    """Returns True for a process in the middle of a command that this daemon does not know."""
    flags = peer.hello.flags & (AgentFlag.STAGED | AgentFlag.FROZEN)
    return peer.hello.phase != AgentPhase.RUNNING or bool(flags)


def _is_overlooked(process: Process) -> bool:
    """Tells whether its agent came in the middle of a command, and none here knows of it."""
    return process.state == State.RUNNING and process.peer is not None and stranded(process.peer)


def _world_as_seen(named: World, vendor: int) -> World:
    """Returns the world of the vendor that a job's first process names.

    A simulated world stays as named, and that of a backend with a shim of its own.
    """
    served = {each.vendor: backend for backend, each in declarations().items() if each.vendor}
    if named.simulated or named.backend not in served.values():
        return named
    return World(served.get(vendor, named.backend))
