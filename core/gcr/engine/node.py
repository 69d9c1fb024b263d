"""What the engine needs of the node it runs on; the daemon provides it."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import Event
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.config import Config
from gcr.errors import DeadlinePassed, Interrupted, RolledBack, UnsafeRuntime
from gcr.faults import reach
from gcr.job.journal import DecisionRecord, Journal, ProcessDecision
from gcr.peers.control import ControlPeer
from gcr.peers.waiting import Progress
from gcr.peers.worker import WorkerPeer


class World(Struct, frozen=True):
    """Which drivers a job sees: a backend, and the environment that leads to its (simulated) libraries."""

    backend: str
    simulated: bool = False
    environment: tuple[tuple[str, str], ...] = ()


class Node(Protocol):
    config: Config
    journal: Journal

    def worker(self, world: World, device: str) -> WorkerPeer:
        """The worker of a device, started if there is none. Raises BackendMissing, NoRoom, DriverError."""
        ...

    def warm_worker(self, world: World, device: str) -> WorkerPeer | None:
        """The worker if it runs already."""
        ...

    def control(self, world: World) -> ControlPeer:
        """A living control helper."""
        ...

    def leave(self, device: str) -> None:
        """Workers with a context there that no job needs are ended."""
        ...

    def who(self, pid: int) -> str:
        """A process in words: the job, where it is one's."""
        ...

    def give_up_snapshots(self, devices: Collection[str]) -> None:
        """What workers keep there for a moment only is given back. It is free when this returns. Raises nothing."""
        ...

    def has_image(self, record: DecisionRecord) -> bool:
        """Whether the image that a record names was written by its transaction. Raises StoreUnusable, PeerGone …"""
        ...

    def occupying(self, device: str) -> AbstractContextManager[None]:
        """Within it a worker may have memory there that it gives back when asked. Raises NoRoom.

        No program of the device is told that it finds no room without having that given back, whichever job's it is.
        """
        ...


def decide(journal: Journal, record: DecisionRecord) -> None:
    """The one decision of a transaction. Raises RolledBack for a disk that is full, or fails, or is gone."""
    with _written(record.job):
        journal.decide(record)


def undecide(journal: Journal, job: str) -> None:
    """Nothing is decided on the job any more. Raises RolledBack as `decide` does; then what was decided stands."""
    with _written(job):
        journal.remove(job)


def intend(journal: Journal, record: DecisionRecord) -> None:
    """What is decided next, unless the job's image fails. Raises RolledBack as `decide` does."""
    with _written(record.job):
        journal.intend(record)


def give_up(journal: Journal, job: str) -> None:
    """What was intended is taken back. Raises RolledBack as `decide` does."""
    with _written(job):
        journal.give_up(job)


def amend(journal: Journal, job: str, change: Callable[[ProcessDecision], ProcessDecision]) -> None:
    """What was decided stands, but for what is known of its processes. Raises RolledBack as `decide` does."""
    with _written(job):
        journal.amend(job, lambda record: replace(record, processes=tuple(map(change, record.processes))))


@contextmanager
def _written(job: str) -> Iterator[None]:
    try:
        yield
    except (OSError, UnsafeRuntime) as error:
        text = f"the decision on job {job} could not be written: {error}"
        raise RolledBack(text, hint="is there room where gcr keeps its state? gcr daemon logs") from error


def phases(marks: Mapping[str, float], began: float) -> dict[str, float]:
    """Seconds from the request to each mark."""
    return {name: at - began for name, at in sorted(marks.items(), key=lambda item: item[1])}


class Course(Struct):
    """One request on its way: its clock, its deadline, whether its caller still wants it, and whom to tell."""

    kind: str  # "checkpoint", "restore", "recover"
    transaction: int
    timeout: float
    progress: Progress = field(default=lambda _report: None)
    cancelled: Event = field(default_factory=Event)
    began: float = field(default_factory=time.monotonic)
    marks: dict[str, float] = field(default_factory=dict)

    def left(self, phase_limit: float) -> float:
        """Seconds the next phase may take. Raises DeadlinePassed, Interrupted when it must not begin."""
        if self.cancelled.is_set():
            raise Interrupted("interrupted; everything was taken back")
        left = self.began + self.timeout - time.monotonic()
        if left <= 0:
            raise DeadlinePassed(f"not done within {self.timeout:g} s", hint="a longer --timeout")
        return min(left, phase_limit)

    def mark(self, name: str) -> None:
        """A step is done; its time is kept, and tests may strike here."""
        self.marks[name] = time.monotonic()
        self.reach(name)

    def reach(self, step: str) -> None:
        reach(f"{self.kind}.{step}")

    def between(self, first: str, last: str) -> float:
        """Seconds between two marks; 0 if either never came."""
        if first not in self.marks or last not in self.marks:
            return 0.0
        return self.marks[last] - self.marks[first]

    def since_start(self, name: str) -> float:
        return self.marks[name] - self.began

    def tell(self, phase: str, **more: object) -> None:
        self.progress({"phase": phase, **more})
