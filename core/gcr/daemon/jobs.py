"""The jobs gcrd knows: their supervisors, their processes, and the one command that may change each."""

import itertools
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import PurePath
from re import sub
from threading import RLock, Thread

from msgspec import Struct, field

from gcr.api.answers import RecoveredJob
from gcr.api.jobevents import JobRegistered, JobReleased
from gcr.api.reports import TransferReport
from gcr.daemon.history import History
from gcr.daemon.images.imaging import Imaging
from gcr.daemon.missed import Missed
from gcr.daemon.standing import Standing
from gcr.daemon.supervision import Supervision
from gcr.daemon.turn import Turn
from gcr.engine.node import World
from gcr.engine.target import Target
from gcr.errors import DeviceShared, GcrError, NameTaken, NoSuchJob, WrongState
from gcr.job.decisions import DecisionRecord, KeptImage
from gcr.job.process import Process
from gcr.job.runs import refuse_ended
from gcr.job.states import State, job_state
from gcr.memory.escrow import Keeper
from gcr.names import meant
from gcr.processes import ProcessIdentity, started_at

log = logging.getLogger("gcr.daemon")

RECOVERY_PATIENCE = 60.0
SAVES_PATIENCE = 60.0  # of a command with saves that are under way; no other begins meanwhile
COPY_PATIENCE = 5.0  # of a save with one that has just copied the same process
RETURN_S = 2.0  # within which the jobs of a daemon that died have come to its successor, where it left no word of them
AWAIT_S = 10.0  # the same for processes of which it did


class Program(Struct):
    """The program of a job."""

    argv: tuple[str, ...] = ()
    pid: int | None = None
    started: float = field(default_factory=time.time)

    def runs_as(self, pid: int) -> None:
        """Sets its process; the job's age is that of its program, whichever daemon is asked."""
        self.pid, self.started = pid, started_at(pid)


class Ends(Struct):
    """The ends of a job's program and of its processes."""

    finished: bool = False
    told: bool = False  # its supervisor said how the program ended
    stopped_into: KeptImage | None = None  # the image that has it, so its processes were ended
    orphans: dict[int, Process] = field(default_factory=dict)  # ended, and something is kept of them: orphans.py
    states: dict[int, State] = field(default_factory=dict)  # of processes that ended off their device, since it left
    count: int = 0  # processes of it that have ended so far
    names: dict[int, int] = field(default_factory=dict)  # pids of these by the names under which they shared memory


class Results(Struct):
    """The last report of a job, its last recovery that had no error, and the images that were asked for."""

    report: TransferReport | None = None
    recovered: RecoveredJob | None = None
    images: list[Imaging] = field(default_factory=list)  # the last one, and those before that were being written then
    _reported: float = -inf  # when the command of the report began, on time.monotonic()

    def amend(self, former: TransferReport, report: TransferReport) -> None:
        """Replaces the last report by one that tells more, unless a later one has come meanwhile."""
        if self.report is former:
            self.report = report

    @property
    def imaging(self) -> Imaging | None:
        """The last image that was asked for."""
        return self.images[-1] if self.images else None

    def add(self, one: Imaging) -> None:
        """Adds an image. One that was asked for earlier, and has taken longer, comes before those of later cuts."""
        known = sorted([*(each for each in self.images if each is not one), one], key=lambda each: each.order.began)
        self.images = [each for each in known if each is known[-1] or each.state == "writing"]

    def tell(self, report: TransferReport, began: float) -> None:
        """Keeps the report, unless a command that began later has told its own already."""
        if began >= self._reported:
            self.report, self._reported = report, began


class Job(Struct):
    name: str
    token: str
    world: World
    owner: int = field(default_factory=os.getuid)  # the user that registered it, or that owns its processes
    program: Program = field(default_factory=Program)
    supervision: Supervision = field(default_factory=Supervision)
    processes: dict[int, Process] = field(default_factory=dict)
    decision: DecisionRecord | None = None
    results: Results = field(default_factory=Results)
    ends: Ends = field(default_factory=Ends)
    context_on: frozenset[str] = frozenset()  # devices where a context stays when it is suspended as a whole
    turn: Turn = field(default_factory=Turn)

    def keeper(self) -> Keeper:
        """Returns the keepers of duplicates: the supervisor while it lives, and this daemon."""
        return self.supervision.keeper(self.name)

    def hand_on(self, process: Process, batch: int) -> None:
        """Gives a supervisor that was away the daemon's duplicates. No duplicates of a suspended process are kept."""
        suspended = process.state in (State.SUSPENDED, State.DATA_SUSPENDED)
        at_rest = suspended and self.turn.settled.is_set() and not self.busy
        self.supervision.hand_on(process.identity.pid, batch, at_rest)

    @property
    def living(self) -> list[Process]:
        return [p for p in self.processes.values() if p.state != State.EXITED]

    @property
    def begun(self) -> list[Process]:
        """Returns the living processes that have made a call of a driver."""
        return [p for p in self.living if not p.waits]

    @property
    def state(self) -> State:
        """Returns the state of the processes that have made a driver call; of all, if none has.

        A parked job is suspended. A stopped job is restoring while its processes are being made.
        """
        if self.supervision.parked:
            return State.SUSPENDED
        if not self.processes:
            return State.EXITED if self.ends.finished else self.supervision.state_without_processes
        present = list(self.processes.values())
        begun = [process for process in present if not process.waits]
        staying = [process for process in begun or present if not process.seen.ending]  # the others run on to their end
        return job_state(process.state for process in staying or present)

    @property
    def holds_newcomers(self) -> bool:
        """Returns True if the first call of a new process must wait: the job is off its devices, or may be leaving."""
        at_work = (State.RUNNING, State.LOST)
        leaving = self.turn.changing or self.decision is not None
        return leaving or any(p.state not in at_work for p in self.begun)

    @property
    def was(self) -> State:
        """Returns the job's state when its program ended; its present state while it goes on."""
        if self.supervision.parked:
            return State.SUSPENDED
        states = list(self.ends.states.values()) or [process.state for process in self.living]
        return job_state(states) if states else State.RUNNING

    @contextmanager
    def changing(self, what: str, beside_readers: bool = False, waited_for: bool = False) -> "Iterator[Hold]":
        """Allows one transaction a job, and none before a recovery is over. Raises WrongState if there is one.

        beside_readers: also while others read copies that they made of it. waited_for: others wait for its end
        """
        if what != "recover" and not self.turn.settled.wait(RECOVERY_PATIENCE):
            raise WrongState(f"job {self.name} is still being recovered", state=self.state, hint="gcr recover")
        hold = Hold(self)
        hold.take(beside_readers, waited_for)
        try:
            yield hold
        finally:
            hold.end()

    @property
    def keeps_contexts(self) -> bool:
        """Returns True if the job is suspended, or about to be: its contexts take room from jobs that come back."""
        return self.busy or self.state not in (State.RUNNING, State.EXITED, State.DATA_SUSPENDED)

    @property
    def busy(self) -> bool:
        return self.turn.busy

    def needs_worker(self, world: World, device: str) -> bool:
        """Returns True if a process of it runs there, or soon may. A suspended job needs none: it is staged."""
        if world != self.world:
            return False
        return self.busy or any(p.state == State.RUNNING and device in p.prepared for p in self.living)


class Hold(Struct):
    """A command's turn at a job, which it may leave to others while it reads its copies."""

    job: Job
    reading: bool = False

    def take(self, beside_readers: bool, waited_for: bool = False) -> None:
        """Raises WrongState if another command has the turn."""
        if not self.job.turn.take(beside_readers, SAVES_PATIENCE, waited_for):
            raise _busy(self.job)

    def leave(self) -> None:
        """Leaves the turn to others: nothing of the job is changed any more."""
        self.job.turn.leave()
        self.reading = True

    def take_again(self) -> None:
        """Takes a turn that was left, for another attempt. Raises WrongState if another command has it."""
        if self.reading:
            self.take(beside_readers=True)
            self.job.turn.read()
            self.reading = False

    def end(self) -> None:
        if self.reading:
            self.job.turn.read()
        else:
            self.job.turn.give_back()


class Save(Struct):
    """A save of one process: it is copied aside, then the copy is read. `is_copied`: its process is free."""

    job: Job
    pid: int
    is_copied: bool = False

    def begin(self) -> None:
        """Raises WrongState beside a command, or another copy of the process."""
        if not (self.job.turn.settled.is_set() and self.job.turn.begin_save(self.pid, COPY_PATIENCE)):
            raise _busy(self.job)

    def copied(self) -> None:
        self.job.turn.copied(self.pid)
        self.is_copied = True

    def end(self) -> None:
        self.job.turn.end_save(self.pid, self.is_copied)


def _busy(job: Job) -> WrongState:
    return WrongState(f"job {job.name} is being checkpointed or restored just now", state=job.state)


class Jobs(Struct):
    """All jobs by name, and the targets of running transactions by pid. Thread-safe."""

    by_name: dict[str, Job] = field(default_factory=dict)
    targets: dict[int, Target] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock)
    began: float = field(default_factory=time.monotonic)
    awaited: Callable[[], Sequence[ProcessIdentity]] = tuple  # processes of a former daemon that have not come yet
    missed: Missed = field(default_factory=Missed)  # of all jobs
    standing: Standing = field(default_factory=Standing)
    history: History = field(default_factory=History)
    settle: Callable[[Job], object] = lambda _job: None  # releases what ended processes of it held

    def await_all(self) -> Sequence[ProcessIdentity]:
        """Wait until the processes of the former daemon have come, for AWAIT_S at most; those that have not."""
        while (missing := self.awaited()) and time.monotonic() < self.began + AWAIT_S:
            time.sleep(0.02)
        return missing

    def find(self, target: str | int, may_see: Callable[[int], bool] = lambda _owner: True) -> Job:
        """Returns the job of this name, or of the process with this pid. Raises NoSuchJob.

        `may_see`: whether the error may name jobs of a user.
        A name that a new daemon does not know may be that of a job that its supervisor is about to register again.
        """
        while (job := self._known(target)) is None:
            if time.monotonic() > self.began + self._patience(target):
                raise self._unknown(target, may_see)
            time.sleep(0.05)
        return job

    def _unknown(self, target: str | int, may_see: Callable[[int], bool]) -> NoSuchJob:
        if may_see(os.getuid()):  # the records are this user's
            try:
                refuse_ended(target)
            except NoSuchJob as ended:
                return ended
            except (GcrError, OSError) as error:
                log.info("job %s: its record was not looked for: %s", target, error)
        return NoSuchJob(f"no job {target!r}{self._near(target, may_see)}", hint="gcr ps")

    def _near(self, target: str | int, may_see: Callable[[int], bool]) -> str:
        return meant(str(target), [job.name for job in self.all() if may_see(job.owner)])

    def _patience(self, target: str | int) -> float:
        """Seconds from the daemon's start within which the target may come yet."""
        awaited = self.awaited()
        if isinstance(target, int):
            return AWAIT_S if any(target == each.pid for each in awaited) else 0.0
        return AWAIT_S if awaited else RETURN_S

    def _known(self, target: str | int) -> Job | None:
        with self.lock:
            for job in self.by_name.values():
                if target == job.name or target == job.program.pid or target in job.processes:
                    return job
        return None

    @contextmanager
    def changing(self, job: Job, what: str, beside_readers: bool = False, waited_for: bool = False) -> Iterator[Hold]:
        """Does as Job.changing. A process that comes meanwhile waits at its first call, until the job runs again."""
        try:
            with job.changing(what, beside_readers, waited_for) as hold:
                with self.lock:  # a process that was welcomed before is in the list now
                    pass
                self.standing.end(job.living)
                yield hold
        finally:
            self.let_begin(job)

    @contextmanager
    def saving(self, job: Job, pid: int) -> Iterator[Save]:
        """Lets a process be saved beside other saves, and keeps commands waiting meanwhile. Raises WrongState."""
        save = Save(job, pid)
        save.begin()
        try:
            yield save
        finally:
            save.end()
            self.let_begin(job)

    def copied(self, save: Save) -> None:
        """Does as Save.copied; processes that waited go on."""
        save.copied()
        self.let_begin(save.job)

    def leave(self, hold: Hold) -> None:
        """Does as Hold.leave; processes that waited go on."""
        hold.leave()
        self.let_begin(hold.job)

    def let_begin(self, job: Job) -> None:
        """Processes that waited go on, unless the job is off its devices still."""
        with self.lock:  # a checkpoint that begins later finds these among the processes that run
            if job.holds_newcomers:
                return
            waited = [process for process in job.living if process.waits]
            for process in waited:
                process.waits = False
                process.settle(State.RUNNING)
                if process.peer is None:  # it has not made its call yet, and waits for nothing
                    job.processes.pop(process.identity.pid, None)
        for process in waited:
            if process.peer is not None:
                Thread(target=process.begin, name="gcr-begin", daemon=True).start()

    def with_token(self, token: str) -> Job | None:
        with self.lock:
            return next((job for job in self.by_name.values() if job.token == token), None)

    def add(self, job: Job) -> None:
        with self.lock:
            if job.name in self.by_name:
                raise NameTaken(f"there is a job {job.name!r} already", hint="another --name; gcr ps shows this one")
            job.supervision.missed = self.missed
            self.by_name[job.name] = job
        self.history.note(job.owner, JobRegistered(job=job.name, simulated=job.world.simulated, uid=job.owner))

    def claim(self, job: Job, devices: Collection[str]) -> None:
        """Contexts of the job will stay there, suspended. Raises DeviceShared where those of another one do already."""
        with self.lock:
            others = [o for o in self.by_name.values() if o is not job and o.world.backend == job.world.backend]
            for other in others:
                both = sorted(other.context_on.intersection(devices)) if other.keeps_contexts else []
                if both:
                    text = f"job {other.name} is suspended on {both[0]}: with {job.name} suspended there, neither could"
                    hint = f"gcr restore {other.name} before, or checkpoint --data-only"
                    raise DeviceShared(f"{text} come back", hint=hint)
            job.context_on = frozenset(devices)

    def remove(self, job: Job) -> bool:
        """Returns False if it was removed before."""
        with self.lock:
            there = self.by_name.get(job.name) is job
            if there:
                del self.by_name[job.name]
            return there

    def release(self, job: Job) -> None:
        """Removes the job of a process that gcr did not start; the process runs on."""
        if self.remove(job):
            self.history.note(job.owner, JobReleased(job=job.name))

    def free_name(self, argv: tuple[str, ...]) -> str:
        """After the program and a counter: `python-1`."""
        stem = sub(r"[^a-z0-9._-]", "-", PurePath(argv[0]).name.lower()).lstrip("0123456789._-") or "job"
        with self.lock:
            for number in itertools.count(1):
                if (name := f"{stem[:50]}-{number}") not in self.by_name:
                    return name
        raise AssertionError

    def all(self) -> list[Job]:
        with self.lock:
            return sorted(self.by_name.values(), key=lambda job: job.program.started)
