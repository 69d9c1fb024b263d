"""The head start of a job that comes in next: memory of it is made and refilled while another job's data leaves.

The link carries both at once. The one that leaves keeps its memory until its checkpoint is decided, as always. So the
head start has only room that is free besides, and less than all of that: a sixteenth of the device is left to drivers.
What it makes is resident memory (residents.py) of a job that stays suspended, with its whole copy in host memory. Any
program that needs the room gets it, and a restore needs none of it. Where the other job's checkpoint fails it is
evicted before that job takes back what is its own.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from msgspec import Struct, field

from gcr.api.requests import CheckpointRequest
from gcr.control import ControlMeans
from gcr.daemon.commands.resting import rests
from gcr.daemon.commands.transaction import target_of
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.jobs import Job
from gcr.daemon.permission import Caller
from gcr.daemon.residents import Resident, evict
from gcr.engine.target import Target
from gcr.errors import GcrError, NoSuchJob, UsageError
from gcr.faults import reach
from gcr.peers.worker import WorkerPeer

log = logging.getLogger("gcr.daemon")

TURN_S = 1.0  # of other jobs' drivers at the device: then the head start ends
PIECE_S = 10.0
BETWEEN_S = 0.0005  # in which a driver gets its turn at the device
ALL = 1 << 62  # bytes


class HeadStart(Struct):
    """One head start. `most`: bytes of all devices together."""

    node: Coordinator
    job: Job
    most: int = ALL
    _room: dict[str, int] = field(default_factory=dict)  # by device, bytes that it may have there
    _made: dict[tuple[str, str], tuple[WorkerPeer, int]] = field(default_factory=dict)  # by hold and device: bytes
    _thread: Thread | None = None
    _over: Event = field(default_factory=Event)

    def look(self) -> None:
        """Notes the room on each device while the other job's driver has its own part, not for this. Raises nothing.

        The driver gives that room up when it saves the process, and gcr holds it for the way back. A piece that was
        made in between would have a part of it, and be evicted.
        """
        with self._quietly():
            for target, device in self._parts():
                if worker := self._worker(target, device):
                    self._room.setdefault(device, worker.spare())

    def begin(self) -> None:
        """Begins on a thread of its own. Raises nothing."""
        if self._thread is None and not self._over.is_set():
            self._thread = Thread(target=self._run, name="gcr-head-start", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Begins no more pieces: the restore does the rest beside the driver's part."""
        self._over.set()

    def end(self) -> None:
        """Returns once the piece that is under way is there. What was made stays, for the restore."""
        self.stop()
        if self._thread:
            self._thread.join()

    def give_up(self) -> None:
        """Ends it, and evicts what it made. Raises nothing."""
        self.end()
        for (hold, _), (worker, size) in self._made.items():
            evict(Resident(worker, hold, size, 0.0))

    def _run(self) -> None:
        began = time.monotonic()
        with self._quietly():
            self._refill()
        text = "job %s: a head start of %d bytes in %.3f s, with room for %d"
        log.info(text, self.job.name, self._sum(), time.monotonic() - began, sum(self._room.values()))

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Notes what fails within the block: the other job's checkpoint goes on."""
        try:
            yield
        except GcrError as error:
            log.info("job %s: its head start ended: %s", self.job.name, error)
        except Exception:
            log.exception("job %s: its head start failed", self.job.name)

    def _refill(self) -> None:
        for target, device in self._parts():
            if device in self._room and (worker := self._worker(target, device)):
                self._refill_on(target, worker)

    def _parts(self) -> Iterator[tuple[Target, str]]:
        """Yields the processes that may have a head start, with each device of theirs."""
        job = self.job
        may = rests(job) and _has_copies(job) and self.node.control(job.world).means is ControlMeans.DRIVER
        for process in job.begun if may else ():  # as memory that stays: engine/steps/resident.py
            target = target_of(self.node, job, process, process.suspension.transaction)
            target.come_back({})
            if not process.copied_out and not process.seen.shares.any:
                yield from ((target, device) for device in sorted(target.bytes_by_device))

    def _worker(self, target: Target, device: str) -> WorkerPeer | None:
        """Returns the worker that has the copy of a process, if it has."""
        worker = self.node.warm_worker(self.job.world, device)
        return worker if worker and worker.copies.knows(target.copy_name) else None

    def _refill_on(self, target: Target, worker: WorkerPeer) -> None:
        """Refills piece after piece. A worker that ends, ends it as well."""
        while not self._over.is_set() and (size := self._piece(target, worker)):
            self._made[target.hold, worker.device] = worker, self._of(target, worker.device) + size
            reach("head_start.piece")
            time.sleep(BETWEEN_S)

    def _piece(self, target: Target, worker: WorkerPeer) -> int:
        device = worker.device
        left = min(self.most - self._sum(), self._room[device] - self._sum(device))
        begins = (target.hold, device) not in self._made
        with self.node.residents.coming(device), self.node.turns.making([device], TURN_S):
            return worker.copies.refill_ahead(target.copy_name, left, begins, PIECE_S)

    def _sum(self, device: str | None = None) -> int:
        """Returns the bytes made so far, on one device or on all."""
        return sum(size for (_, there), (_, size) in self._made.items() if device in (None, there))

    def _of(self, target: Target, device: str) -> int:
        return self._made[target.hold, device][1] if (target.hold, device) in self._made else 0


def refuse_then(node: Coordinator, job: Job, request: CheckpointRequest, caller: Caller) -> None:
    """Refuses a job that cannot be the next one, before anything is touched. Raises NoSuchJob, NotOurs, UsageError."""
    if request.then is None:
        return
    following = node.jobs.find(request.then.job, caller.may_use)
    caller.check_owner(following.owner, f"job {following.name}")
    if following is job:
        raise UsageError(f"job {job.name} cannot come in while it leaves: name another one")


@contextmanager
def head_start(node: Coordinator, request: CheckpointRequest) -> Iterator[HeadStart | None]:
    """Yields the head start that a request asks for, which the drain begins and this ends; None for none."""
    if request.then is None:
        yield None
        return
    try:
        job = node.jobs.find(request.then.job)
    except NoSuchJob:  # it has ended since
        yield None
        return
    most = request.then.most_bytes
    made = HeadStart(node, job, ALL if most is None else most)
    made.look()
    try:
        yield made
    finally:
        made.end()


def _has_copies(job: Job) -> bool:
    """Tells whether every byte of a suspended job is in this machine's memory, and gcr's workers can bring it back."""
    decision = job.decision
    return decision is not None and decision.kind != "driver" and not decision.away and decision.image is None
