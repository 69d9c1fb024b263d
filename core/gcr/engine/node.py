"""The node as the engine sees it; the daemon implements it. And the clock of one request."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import Event
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.api.barriers import Barrier
from gcr.api.events import Listener, ProgressEvent
from gcr.config import Config
from gcr.engine.joint import Located
from gcr.engine.part import Obey, Part, no_ranks
from gcr.engine.turns import Turns
from gcr.errors import DeadlinePassed, Interrupted, RolledBack, UnsafeRuntime
from gcr.faults import reach
from gcr.job.decisions import DecisionRecord, ProcessDecision, Unreturned
from gcr.job.journal import Journal
from gcr.peers.control import ControlPeer
from gcr.peers.worker import WorkerPeer
from gcr.protocol.operations.worker import CopyName


class World(Struct, frozen=True):
    """The drivers that a job sees: a backend, and the environment that leads to its (simulated) libraries."""

    backend: str
    simulated: bool = False
    environment: tuple[tuple[str, str], ...] = ()


class Node(Protocol):
    config: Config
    journal: Journal
    turns: Turns

    def worker(self, world: World, device: str) -> WorkerPeer:
        """Returns the worker of a device, started if there is none.

        Raises BackendMissing, NoRoom, DriverError, DeadlinePassed.
        """
        ...

    def warm_worker(self, world: World, device: str) -> WorkerPeer | None:
        """Returns the worker if it runs already."""
        ...

    def control(self, world: World) -> ControlPeer:
        """Returns a living control helper."""
        ...

    def leave(self, device: str, users: Collection[int]) -> None:
        """Ends workers with a context there that no job needs. `users`: pids that the device counts."""
        ...

    def who(self, pid: int) -> str:
        """Returns a process in words, with its job where it has one."""
        ...

    def locate(self, name: int, pid: int) -> Located | None:
        """Returns the process of any job that shares memory under this name or, if there is none, that has this pid.

        It asks all agents, so it is for refusals alone.
        """
        ...

    def free_room(self, devices: Collection[str]) -> None:
        """Makes workers give back the room of snapshots, and evicts resident memory. It is free when this returns.

        Raises nothing.
        """
        ...

    def make_way(self, device: str, nbytes: int, beside: Collection[str]) -> int:
        """Evicts resident memory of suspended jobs, from the job that was suspended first on. Raises nothing.

        Returns the released bytes: `nbytes` or more, if there was so much. beside: holds of processes that keep their
        memory
        """
        ...

    def stay(self, worker: WorkerPeer, copy: CopyName) -> int:
        """Makes memory that a worker holds resident beside this copy. Returns its bytes. Raises WrongState, NoRoom."""
        ...

    def has_image(self, record: DecisionRecord) -> bool:
        """Tells whether a record's image was written by the same transaction. Raises StoreUnusable, PeerGone …"""
        ...

    def occupying(self, device: str) -> AbstractContextManager[None]:
        """Returns a block within which a worker may have memory there that it gives back when asked. Raises NoRoom.

        That memory is given back before any program on the device, of any job, is told that there is no room.
        """
        ...


def decide(journal: Journal, record: DecisionRecord) -> None:
    """Writes the one decision of a transaction. Raises RolledBack for a disk that is full, or fails, or is gone."""
    with _written(record.job):
        journal.decide(record)


def undecide(journal: Journal, job: str) -> None:
    """Removes the decision on a job. Raises RolledBack as `decide` does; then the decision stands."""
    with _written(job):
        journal.remove(job)


def intend(journal: Journal, record: DecisionRecord) -> None:
    """Writes the next decision, which holds unless the job's image fails. Raises RolledBack as `decide` does."""
    with _written(record.job):
        journal.intend(record)


def give_up(journal: Journal, job: str) -> None:
    """Removes what `intend` wrote. Raises RolledBack as `decide` does."""
    with _written(job):
        journal.give_up(job)


def amend(journal: Journal, job: str, change: Callable[[ProcessDecision], ProcessDecision]) -> None:
    """Changes the facts about processes in a decision, which stands. Raises RolledBack as `decide` does."""
    with _written(job):
        journal.amend(job, lambda record: replace(record, processes=tuple(map(change, record.processes))))


def note(journal: Journal, job: str, found: Unreturned) -> None:
    """Notes a process that did not come back in the decision, which stands. Raises RolledBack as `decide` does."""
    with _written(job):
        journal.amend(job, lambda record: record.noting(found))


@contextmanager
def _written(job: str) -> Iterator[None]:
    try:
        yield
    except (OSError, UnsafeRuntime) as error:
        text = f"the decision on job {job} could not be written: {error}"
        raise RolledBack(text, hint="is there room where gcr keeps its state? gcr daemon logs") from error


def phases(marks: Mapping[str, float], began: float) -> dict[str, float]:
    """Returns the seconds from the request to each mark."""
    return {name: at - began for name, at in sorted(marks.items(), key=lambda item: item[1])}


class Course(Struct):
    """One request under way: its clock, its deadline, its caller's interest in it, and the receiver of progress.

    part: in a cut over several nodes, where it is one
    """

    kind: str  # "checkpoint", "restore", "recover"
    transaction: int
    timeout: float
    progress: Listener = field(default=lambda _event: None)
    cancelled: Event = field(default_factory=Event)
    began: float = field(default_factory=time.monotonic)
    marks: dict[str, float] = field(default_factory=dict)
    part: Part | None = None

    def left(self, phase_limit: float) -> float:
        """Returns the seconds for the next phase. Raises when it must not begin.

        DeadlinePassed, Interrupted, CutGivenUp.
        """
        if self.cancelled.is_set():
            raise Interrupted("interrupted; everything was taken back")
        if self.part:
            self.part.check()
        left = self.began + self.timeout - time.monotonic()
        if left <= 0:
            raise DeadlinePassed(f"not done within {self.timeout:g} s", hint="a longer --timeout")
        return min(left, phase_limit)

    def mark(self, name: str) -> None:
        """Keeps the time of a finished step; tests may inject a fault here."""
        self.marks[name] = time.monotonic()
        self.reach(name)

    def reach(self, step: str) -> None:
        reach(f"{self.kind}.{step}")

    @property
    def cut(self) -> str:
        """Returns the id of the cut that it is a part of; empty without one."""
        return self.part.id if self.part else ""

    def hold(self, barrier: Barrier, obey: Obey = no_ranks) -> Barrier:
        """Waits at a barrier until the coordinator of the cut says go. Returns at once where there is no cut.

        Returns the barrier that was passed, as Part.wait. Raises CutGivenUp, as `left`, and what an order raises.
        """
        if self.part:
            barrier = self.part.wait(barrier, self._tell_barrier, self.left, obey)
            if self.part.is_kept:  # the image counts: neither a caller that leaves nor the clock takes it back
                self.cancelled, self.timeout = Event(), math.inf
            self.mark(f"went_{barrier}")
        return barrier

    def _tell_barrier(self, barrier: Barrier) -> None:
        self.reach(barrier)
        self.progress(ProgressEvent(phase="waiting", message="for the other nodes", barrier=barrier))

    def between(self, first: str, last: str) -> float:
        """Returns the seconds between two marks; 0 if either never came."""
        if first not in self.marks or last not in self.marks:
            return 0.0
        return self.marks[last] - self.marks[first]

    def since_start(self, name: str) -> float:
        return self.marks[name] - self.began

    def tell(self, phase: str, message: str | None = None) -> None:
        self.progress(ProgressEvent(phase=phase, message=message))
