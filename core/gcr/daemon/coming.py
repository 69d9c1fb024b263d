"""Device memory of jobs that are on their way here: workers fill it while the images of the rounds come in.

So do they for a stopped job while CRIU makes its processes. The restore takes the memory if all of it is there as in
that very image (its seal). Else it reads the image, as any restore does. The memory goes with a failure, with the
migration's record, with its worker, and where a program needs the room.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Event, Lock

from msgspec import Struct, field

from gcr.api.events import ProgressEvent
from gcr.engine.tidying import quietly
from gcr.errors import NoRecord
from gcr.job.migrations import Migrations, Stage
from gcr.peers.image import ImagePeer
from gcr.peers.worker import WorkerPeer
from gcr.protocol.operations.worker import Moved

log = logging.getLogger("gcr.daemon")

LOOK_S = 0.05

Place = tuple[int, str]  # pid in the image, and the device that the bytes left


class Coming(Struct, eq=False):
    """The memory of one job. `workers`: those that hold some of it, by place · `whole`: the seal of the image in it.

    helper: knows the names of the chunks that are there · marks: end with the memory · moved: the copies of a fill
    over: set once it is not wanted any more; a fill under way ends then · lock: held by a fill, and by a taker
    is_wanted: None for that of a migration, which its record tells · told: the progress of a fill, for a taker
    """

    id: str
    is_wanted: Callable[[], bool] | None = None
    workers: dict[Place, WorkerPeer] = field(default_factory=dict)
    whole: bytes = b""
    helper: ImagePeer | None = None
    moved: dict[Place, Moved] = field(default_factory=dict)
    told: ProgressEvent | None = None
    marks: ExitStack = field(default_factory=ExitStack)
    over: Event = field(default_factory=Event)
    lock: Lock = field(default_factory=Lock)

    def hold(self, pid: int) -> str:
        """Returns the name under which the workers keep the memory of a process."""
        return f"coming.{self.id}.{pid}"

    def taken(self, pid: int, device: str, worker: WorkerPeer) -> str | None:
        """Returns the hold of memory that this worker has whole, for the restore that takes it; None without any."""
        with self.lock:
            if not self.whole or self.workers.get((pid, device)) is not worker:
                return None
            del self.workers[pid, device]
            return self.hold(pid)

    def await_fill(self, look: Callable[[], object]) -> None:
        """Waits until no fill is under way. `look`: called meanwhile; what it raises ends the wait."""
        while not self.lock.acquire(timeout=LOOK_S):
            look()
        self.lock.release()

    def helper_that_knows(self) -> ImagePeer | None:
        """Returns the helper that has filled the memory, the caller's from then on; None where it is not whole."""
        with self.lock:
            if not self.whole or self.helper is None or self.helper.channel.closed.is_set():
                return None
            helper, self.helper = self.helper, None
            return helper

    def give_up(self) -> None:
        """Releases all that is left. The lock is held. Raises nothing."""
        self.whole = b""
        for (pid, _), worker in self.workers.items():
            quietly("release what was coming", partial(worker.surrender, self.hold(pid)))
        self.workers.clear()
        if self.helper:
            self.helper.channel.close()
            self.helper = None
        self.marks.close()


class AllComing(Struct):
    """The memory of all jobs that are on their way here, by job. Thread-safe."""

    _by_job: dict[str, Coming] = field(default_factory=dict)
    _leaving: list[Coming] = field(default_factory=list)  # given up, and maybe not released yet
    _lock: Lock = field(default_factory=Lock)

    def of(self, job: str, id: str, is_wanted: Callable[[], bool] | None = None) -> Coming:
        """Returns that of a migration or, where it `is_wanted`, of a stopped job; it is begun where there is none."""
        with self._lock:
            known = self._by_job.get(job)
            if known is None or known.id != id:
                former, known = known, Coming(id, is_wanted)
                self._by_job[job] = known
                self._leaving += [former] if former else []
            else:
                former = None
        if former:
            self._end_leaving(former)
        return known

    def known(self, job: str) -> Coming | None:
        with self._lock:
            return self._by_job.get(job)

    def drop(self, job: str, id: str) -> None:
        """Gives up what has come of a job. A fill under way is ended, and waited for. Raises nothing."""
        with self._lock:
            known = self._by_job.get(job)
            if known is None or known.id != id:
                return
            del self._by_job[job]
            self._leaving.append(known)
        self._end_leaving(known)

    @contextmanager
    def ended_by(self, job: str, coming: Coming | None) -> Iterator[None]:
        """Gives up what the block, a restore of the job, has not taken, however it ends."""
        try:
            yield
        finally:
            if coming:
                self.drop(job, coming.id)

    def may_be_on(self, device: str) -> bool:
        """Tells whether there may be some on a device."""
        return any(device == worker.device for known in self._there() for worker in [*known.workers.values()])

    def free(self, devices: Collection[str]) -> None:
        """Gives up all of it on these devices, for a program that needs the room: also waits for what is leaving."""
        for known in self._there():
            if any(worker.device in devices for worker in [*known.workers.values()]):
                _end(known)

    def free_all(self) -> None:
        """Gives up all of it. Raises nothing."""
        for known in self._there():
            _end(known)

    def settle(self) -> None:
        """Gives up what belongs to no migration any more. Raises nothing."""
        for job, known in self._all().items():
            if not (known.is_wanted() if known.is_wanted else is_arriving(job, known.id)):
                self.drop(job, known.id)

    def _end_leaving(self, known: Coming) -> None:
        try:
            _end(known)
        finally:
            with self._lock:
                self._leaving.remove(known)

    def _there(self) -> list[Coming]:
        """Returns all memory that takes room, also the memory that gcr is releasing."""
        with self._lock:
            return [*self._by_job.values(), *self._leaving]

    def _all(self) -> Mapping[str, Coming]:
        with self._lock:
            return dict(self._by_job)


def is_arriving(job: str, id: str) -> bool:
    """Returns whether the record says that the job is on its way here; also where the record does not read back."""
    try:
        found = Migrations.here().of(job)
    except NoRecord:
        return True
    return found is not None and found.id == id and found.stage is Stage.ARRIVING


def _end(known: Coming) -> None:
    known.over.set()
    with known.lock:
        known.give_up()
