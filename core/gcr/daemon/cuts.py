"""Cuts over several nodes that jobs of this daemon are parts of just now."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from msgspec import Struct, field

from gcr.api.listings import CutInfo
from gcr.api.requests import CheckpointRequest, CutRequest, RestoreRequest
from gcr.cuterrors import CannotHold, CutTaken, NoSuchCut
from gcr.daemon.jobs import Job, Jobs
from gcr.daemon.permission import Caller
from gcr.engine.node import Course
from gcr.engine.part import DURABLE_S, Part
from gcr.errors import WrongState
from gcr.job.states import Strategy
from gcr.standstill.messages import Report


class Joined(Struct, frozen=True):
    """A job, and its part in a cut."""

    job: Job
    part: Part


class Cuts(Struct):
    """The cuts under way, by id. Thread-safe."""

    jobs: Jobs
    _joined: dict[str, Joined] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def joining(
        self, request: CheckpointRequest | RestoreRequest, job: Job, course: Course, still_s: float
    ) -> Iterator[None]:
        """Has the command wait at the barriers of the cut that it names, if it names one.

        Raises CutTaken where the cut is under way on this node, or has suspended a job.
        """
        if request.cut is None:
            yield
            return
        self._refuse_former(request.cut)
        course.part = self._join(Part(request.cut, still_s, request.timeout or DURABLE_S), job)
        try:
            yield
        finally:
            with self._lock:
                del self._joined[request.cut]

    def _join(self, part: Part, job: Job) -> Part:
        with self._lock:
            if part.id in self._joined:
                raise CutTaken(f"job {self._joined[part.id].job.name} is a part of cut {part.id} just now")
            self._joined[part.id] = Joined(job, part)
            return part

    def _refuse_former(self, cut: str) -> None:
        for job in self.jobs.all():
            if job.decision is not None and job.decision.cut == cut:
                raise CutTaken(f"cut {cut} has suspended job {job.name}", hint=f"gcr cluster recover {job.name}")

    def part_in(self, cut: str, caller: Caller) -> Part | None:
        """Returns this node's part in a cut under way; None where it has none. Raises NotOurs."""
        with self._lock:
            joined = self._joined.get(cut)
        if joined is None:
            return None
        caller.check_owner(joined.job.owner, f"job {joined.job.name}")
        return joined.part

    def told(self, word: CutRequest, caller: Caller) -> tuple[Report, ...]:
        """Hands the coordinator's word on, and returns what the ranks report that it leads. Raises NoSuchCut, NotOurs.

        Raises UsageError for an order that the part cannot obey.
        """
        part = self.part_in(word.id, caller)
        if part is None:
            raise NoSuchCut(f"this node has no part in cut {word.id} just now", hint="gcr ps --json")
        if word.lead:
            return part.led(word.lead)
        if word.barrier is None:
            part.give_up()
        else:
            part.go(word.barrier)
        return ()

    def of(self, job: Job) -> CutInfo | None:
        """Returns the cut that the job waits for, or that has suspended it."""
        with self._lock:
            parts = [each.part for each in self._joined.values() if each.job is job]
        at = next((part for part in parts if part.at), None)
        if at:
            return CutInfo(id=at.id, barrier=at.at)
        by = job.decision.cut if job.decision and job.decision.kind != "restored" else ""
        return CutInfo(id=by, barrier=None) if by else None


def refuse_to_suspend(job: Job) -> None:
    """Raises WrongState for a job that is suspended already, CannotHold for one that could not wait at a barrier."""
    if job.decision is not None:
        text = f"job {job.name} is suspended already"
        raise WrongState(text, state=job.state, hint=f"gcr cluster recover {job.name}")
    if any(process.strategy == Strategy.DRIVER for process in job.living):
        raise _by_driver(job)


def refuse_to_park(job: Job) -> None:
    """Raises CannotHold for a job that leaves by a private image."""
    text = f"the driver of {job.name} saves no living process: its processes would end, and not wait for other nodes"
    raise CannotHold(text, hint="--data-only leaves its contexts where they are")


def refuse_to_bring_back(job: Job) -> None:
    """Raises CannotHold where the restore of the job could not wait at a barrier."""
    if job.supervision.parked or (job.decision is not None and job.decision.away):
        raise CannotHold(
            f"the processes of job {job.name} are in an image", hint=f"gcr restore {job.name}, on each node"
        )
    if job.decision is not None and job.decision.kind == "driver":
        raise _by_driver(job)


def _by_driver(job: Job) -> CannotHold:
    text = f"the driver alone moves the data of {job.name}, at one go: it cannot wait for other nodes"
    return CannotHold(text, hint="start it with gcr run")
