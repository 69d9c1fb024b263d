"""What gcrd does for its clients: the commands, over the jobs, the fleet and the journal."""

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

from gcr.api.requests import CheckpointRequest, RestoreRequest, TransferRequest
from gcr.config import Config
from gcr.daemon import departures, first_call, reports
from gcr.daemon.crowding import naming_holders
from gcr.daemon.fleet import Fleet
from gcr.daemon.foreign import await_hello, foreign_job, refuse_unheard_beside, refuse_without_driver
from gcr.daemon.imaging import Imaging, asked_for
from gcr.daemon.jobs import Active, Job, Jobs
from gcr.daemon.labels import Labels
from gcr.daemon.occupied import Occupied
from gcr.daemon.opened import opened
from gcr.daemon.outlet import ImageOutlet
from gcr.daemon.permission import OURSELVES, Caller
from gcr.daemon.readiness import of_job, ready_bytes
from gcr.daemon.recovery import Recovery
from gcr.daemon.sources import acting, image_of
from gcr.daemon.written import is_written
from gcr.engine.admit import admit, refuse_stopped, refuse_what_the_driver_refuses
from gcr.engine.checkpoint import Checkpoint
from gcr.engine.driver import DriverSwap
from gcr.engine.glance import Glance
from gcr.engine.node import Course, World
from gcr.engine.restore import Restore
from gcr.engine.side_by_side import side_by_side
from gcr.engine.target import Target
from gcr.errors import (
    BackendMissing,
    GcrError,
    ImageFailed,
    NoSuchJob,
    UnsupportedState,
    WrongImage,
    WrongState,
)
from gcr.job.journal import DecisionRecord, Journal
from gcr.job.moves import moves_of
from gcr.job.process import Process
from gcr.job.states import State, Strategy
from gcr.peers.control import ControlPeer
from gcr.peers.waiting import Progress
from gcr.peers.worker import WorkerPeer
from gcr.processes import alive, is_stopped

log = logging.getLogger("gcr.daemon")

DEFAULT_TIMEOUT = 300.0


class Coordinator:
    """Implements the engine's Node."""

    def __init__(self, config: Config, journal: Journal) -> None:
        self.config = config
        self.journal = journal
        self.jobs = Jobs()
        self.fleet = Fleet()
        self.occupied = Occupied()
        self.labels = Labels()
        self.recovery = Recovery(self, self.jobs)
        self._transactions = itertools.count(time.time_ns())

    def worker(self, world: World, device: str) -> WorkerPeer:
        return self.fleet.worker(world, device)

    def warm_worker(self, world: World, device: str) -> WorkerPeer | None:
        return self.fleet.warm_worker(world, device)

    def needs_worker(self, world: World, device: str) -> bool:
        return any(job.needs_worker(world, device) for job in self.jobs.all())

    def control(self, world: World) -> ControlPeer:
        return self.fleet.control(world)

    def leave(self, device: str) -> None:
        self.fleet.leave(device, self.needs_worker)

    def let_go(self, devices: Collection[str]) -> None:
        self.fleet.let_go(devices)

    def occupying(self, device: str) -> AbstractContextManager[None]:
        return self.occupied.on(device)

    def who(self, pid: int) -> str:
        job = next((job for job in self.jobs.all() if pid in job.processes), None)
        if job:
            return f"process {pid} of job {job.name}, {reports.shown(job.state)}"
        ours = any(worker.pid == pid for worker in self.fleet.living_workers())
        return f"process {pid}" + ", a worker of gcr's, which ends when idle (setting worker_idle_s)" * ours

    def has_image(self, record: DecisionRecord) -> bool:
        return is_written(record, self.fleet.image_helper, self.config.store_s)

    # ---- checkpoint -------------------------------------------------------------------------------------------

    def checkpoint(
        self,
        request: CheckpointRequest,
        progress: Progress,
        cancelled: threading.Event,
        key: Sequence[int] = (),
        caller: Caller = OURSELVES,
    ) -> dict[str, Any]:
        """`key`: a descriptor of the key of an encrypted store, the caller's. Raises NotOurs for another user's job."""
        course = self._course(request, progress, cancelled)
        job = self._job(request, caller)
        image = partial(asked_for, request, key, self.fleet.image_helper, course.began, self.config.store_s, caller, [])
        with saying_state(job):
            with self.jobs.changing(job, "checkpoint"):
                if job.decision is not None and job.decision.kind == "driver":
                    raise WrongState(
                        f"process {job.name} is suspended already", state=job.state, hint=f"gcr restore {job.name}"
                    )
                with self._forgetting_untouched(job):
                    attempt = partial(self._attempted, job, course, request, image)
                    report, imaging = departures.without_departed(job, attempt)
                    job.last_report = report
            if imaging:
                job.imaging = imaging
                try:
                    imaging.check()
                    if request.wait == "durable":
                        imaging.wait(course)
                except ImageFailed as failed:
                    raise self._taken_back(job, course, RestoreRequest(target=request.target), failed) from failed
                report |= imaging.report()
            return report

    def _attempted(
        self, job: Job, course: Course, request: CheckpointRequest, image: Callable[[], Imaging | None]
    ) -> tuple[dict[str, Any], Imaging | None]:
        imaging = image()
        return self._take_off(job, course, request, imaging), imaging

    def _taken_back(self, job: Job, course: Course, request: RestoreRequest, failed: ImageFailed) -> ImageFailed:
        """Restores a job whose image failed, unless another command has changed the job since. Returns the error."""
        back = Course("restore", next(self._transactions), DEFAULT_TIMEOUT, course.progress)  # also when nobody waits
        try:
            with self.jobs.changing(job, "restore"):
                if job.decision is not None and job.decision.transaction == course.transaction:
                    self._restore(job, back, request)
        except GcrError as error:
            log.warning("job %s was not taken back: %s", job.name, error)
            text = f"{failed.message}; and the job could not be taken back: {error.message}"
            return ImageFailed(text, hint=f"gcr restore {job.name}")
        log.info("job %s: is %s again: its image failed: %s", job.name, reports.shown(job.state), failed.message)
        return ImageFailed(f"{failed.message}; the job is {reports.shown(job.state)}")

    def _take_off(
        self, job: Job, course: Course, request: CheckpointRequest, imaging: Imaging | None
    ) -> dict[str, Any]:
        try:
            return self._taken_off(job, course, request, imaging)
        except BaseException:
            if imaging and imaging.begun:  # whatever went wrong after it
                job.imaging = imaging
            elif imaging:
                imaging.close()
            raise

    def _taken_off(
        self, job: Job, course: Course, request: CheckpointRequest, imaging: Imaging | None
    ) -> dict[str, Any]:
        if any(p.strategy == Strategy.DRIVER for p in job.living):
            return self._driver_checkpoint(job, course, imaging)
        targets = self._admitted(job, course)
        if not targets:
            self.forget_decision(job)  # about a program that has called exec since
            return first_call.suspend(job, self.jobs, self, course, request.data_only, imaging)
        if imaging and request.leave_running:
            return self._glance(job, targets, course, request, imaging)
        return self._checkpoint(job, targets, course, request, imaging)

    def _glance(
        self, job: Job, targets: list[Target], course: Course, request: CheckpointRequest, imaging: Imaging
    ) -> dict[str, Any]:
        may_stop = partial(imaging.may_begin, targets, course)
        done = Glance(job.name, targets, self, course, True, request.live, request.paranoid, may_stop)
        with self._active(targets):
            try:
                done.look(partial(imaging.baselines, course), imaging.lend)
            except BaseException as error:
                departures.settle_ends(job)
                self.recovery.begin_if_uneven(job)
                if isinstance(error, ImageFailed):  # it runs, and others may ask what became of its image
                    imaging.fail(error)
                    job.imaging = imaging
                    imaging.check()
                raise
        imaging.write([target for target in targets if target.bytes_by_device], time.time(), course)
        return reports.of_glance(job, done, self._link(targets, "link_out_bytes_per_s"))

    def _admitted(self, job: Job, course: Course) -> list[Target]:
        """None of a job whose processes have yet to make their first call."""
        heard = await_hello(job, course.left, lambda: self.control(job.world))
        there = departures.staying(heard)
        if heard and not there:
            raise departures.ending(job)
        targets = [self._target(job, process, course.transaction) for process in there]
        admit(targets)
        refuse_unheard_beside(job, self._heard, self.control(job.world), course.left)
        return targets

    def _checkpoint(
        self, job: Job, targets: list[Target], course: Course, request: CheckpointRequest, imaging: Imaging | None
    ) -> dict[str, Any]:
        data_only = request.data_only
        if not data_only:
            refuse_what_the_driver_refuses(targets)
        keeping = [t for t in targets if t.keeps_context and not data_only]
        self.jobs.claim(job, {device for target in keeping for device in target.books.counts})
        done = Checkpoint(job.name, targets, self, course, data_only, request.live, request.paranoid)
        if imaging:
            done.may_stop = partial(imaging.may_begin, targets, course)
            begun = partial(setattr, job, "imaging", imaging)
            done.outlet = ImageOutlet(imaging, course, not request.timeout, begun)
        try:
            self._carry_out(job, done, targets)
        except Exception as error:
            if imaging and imaging.streamed and not done.decision:
                imaging.fail(error)
            raise
        job.decision = done.decision
        if not any(alive(target.process.identity) for target in targets):  # whoever has heard of it, or has not yet
            self.forget_decision(job)
            raise departures.ending(job)
        departures.settle_ends(job)
        if imaging and imaging.streamed:
            imaging.close()
        elif imaging and done.decision:
            imaging.write_staged(targets, done.decision.decided_at, course)
        return reports.of_checkpoint(job, done, self._link(targets, "link_out_bytes_per_s"))

    def _carry_out(self, job: Job, done: Checkpoint | Restore, targets: list[Target]) -> None:
        with self._active(targets):
            try:
                done.run()
            except BaseException:
                job.decision = done.decision  # decided stays decided, whatever went wrong after it
                departures.settle_ends(job)
                self.recovery.begin_if_uneven(job)
                if not job.living:  # nobody is left that it is about
                    with suppress(OSError):
                        self.forget_decision(job)
                raise

    def _heard(self) -> set[int]:
        """Pids of all who have an agent, and of our own that have a context."""
        ours = {worker.pid for worker in self.fleet.living_workers()}
        return ours.union(*(job.processes for job in self.jobs.all()))

    def _driver_checkpoint(self, job: Job, course: Course, imaging: Imaging | None) -> dict[str, Any]:
        (process,) = job.living
        if imaging:
            text = f"the driver alone has the data of process {job.name}: gcr has nothing to make an image of"
            raise UnsupportedState(text, hint="start it with gcr run")
        swap = DriverSwap(process, self, job.world, course)
        swap.checkpoint()
        job.decision = self.journal.record(job.name)
        return reports.of_driver_checkpoint(job, swap)

    # ---- restore ----------------------------------------------------------------------------------------------

    def restore(
        self,
        request: RestoreRequest,
        progress: Progress,
        cancelled: threading.Event,
        key: Sequence[int] = (),
        caller: Caller = OURSELVES,
    ) -> dict[str, Any]:
        """As `checkpoint`."""
        course = self._course(request, progress, cancelled)
        job = self.jobs.find(request.target, caller.may_use)
        caller.check_owner(job.owner, f"job {job.name}")
        _refuse_other_backend(job, request.backend)
        with saying_state(job), naming_holders(job, self.jobs, self.fleet), self.jobs.changing(job, "restore"):
            return self._restore(job, course, request, key, caller)

    def _restore(
        self, job: Job, course: Course, request: RestoreRequest, key: Sequence[int] = (), caller: Caller = OURSELVES
    ) -> dict[str, Any]:
        return departures.without_departed(job, partial(self._restored, job, course, request, key, caller))

    def _restored(
        self, job: Job, course: Course, request: RestoreRequest, key: Sequence[int], caller: Caller
    ) -> dict[str, Any]:
        departures.refuse_half(job)
        if job.living and not job.begun:
            return first_call.restore(job, self, course, request.image)
        resting = [p for p in job.begun if p.state in (State.SUSPENDED, State.DATA_SUSPENDED)]
        if resting and not (resting := departures.staying(resting)):
            raise departures.ending(job)
        if not resting or job.decision is None:
            raise WrongState(f"job {job.name} is not suspended, it is {job.state}", state=job.state, hint="gcr ps")
        used = {device for p in resting for device in (*p.bytes_by_device, *p.ballast_by_device)}
        moves = self._moves(job, request.devices, used)
        moved = {old: new for old, new in moves.items() if old in used}
        if job.decision.kind == "driver":
            if request.image:
                raise WrongImage(f"image {request.image} is of no process that the driver alone suspended")
            return {**self._driver_restore(job, course, moves), "moved": moved}
        targets = [self._target(job, process, process.transaction) for process in resting]
        for target in targets:
            refuse_stopped(target)
            target.come_back(moves)
        asked, unhurried = image_of(job, request, key), not request.timeout
        start = partial(self.fleet.image_helper, acting(job, request, caller))
        with opened(asked, targets, start, course, self.config.store_s, unhurried) as image:
            done = Restore(job.name, targets, job.decision, self, course, image)
            self._carry_out(job, done, targets)
        job.decision = None
        job.ended_as.clear()
        self.recovery.begin_if_uneven(job)
        departures.refuse_silence(targets)
        departures.settle_ends(job)
        link = self._link(targets, "link_in_bytes_per_s")
        job.last_report = {**reports.of_restore(job, done, link), "moved": moved}
        return job.last_report

    def _moves(self, job: Job, asked: Mapping[str, str], used: Collection[str]) -> dict[str, str]:
        """Of `gcr restore --device`. Raises UnsupportedState, DriverTooOld, WrongDevice; nothing was touched."""
        if not asked:
            return {}
        control = self.control(job.world)
        control.check_move({})
        if any(process.state == State.DATA_SUSPENDED for process in job.living):
            text = f"the context of {job.name} stays on its device: it was suspended without its control state"
            raise UnsupportedState(text, hint=f"gcr restore {job.name}, and a checkpoint without --data-only")
        moves = moves_of(asked, control.devices(), used)
        control.check_move(moves)
        return moves

    def _driver_restore(self, job: Job, course: Course, moves: Mapping[str, str]) -> dict[str, Any]:
        (process,) = job.living
        swap = DriverSwap(process, self, job.world, course)
        swap.restore(moves)
        job.decision = None
        report = reports.of_driver_restore(job, swap)
        self.jobs.remove(job)
        return report

    # ---- looking ----------------------------------------------------------------------------------------------

    def ps(self, caller: Caller = OURSELVES) -> dict[str, Any]:
        """The caller's `jobs`, and pids that were under a former daemon and have not come to this one."""
        missing = self.jobs.await_all()
        jobs = [job for job in self.jobs.all() if not job.busy and caller.may_use(job.owner)]
        running = [process for job in jobs for process in job.living if process.state == State.RUNNING]
        side_by_side(partial(self._look, process) for process in running if not is_stopped(process.identity.pid))
        shown = [job for job in self.jobs.all() if caller.may_use(job.owner)]
        ready = ready_bytes(self.fleet.living_workers())
        rows = [{**reports.of_job(job, self.labels), "arena": of_job(job, ready)} for job in shown]
        return {"jobs": rows, "awaited": [each.pid for each in missing]}

    def _look(self, process: Process) -> None:
        try:
            process.look()
        except GcrError as error:
            log.debug("process %d: %s", process.identity.pid, error)

    def status(self) -> dict[str, Any]:
        from gcr.version import __version__

        workers = [{"device": w.device, "pid": w.pid, **w.arena()} for w in self.fleet.living_workers()]
        return {
            "pid": os.getpid(),
            "version": __version__,
            "arena_bytes": sum(w["bytes"] for w in workers),
            "arena_pinned_bytes": sum(w["pinned_bytes"] for w in workers),
            "jobs": len(self.jobs.all()),
            "workers": workers,
        }

    def forget_decision(self, job: Job) -> None:
        """Where none of those that it was about is left."""
        if departures.outlives_decision(job):
            self.journal.forget(job.name)
            job.decision = None

    @contextmanager
    def _forgetting_untouched(self, job: Job) -> Iterator[None]:
        """A process that gcr did not start, and that is as it was before it was asked for, is no job of ours."""
        try:
            yield
        except BaseException:
            if any(process.strategy == Strategy.DRIVER and process.state == State.RUNNING for process in job.living):
                self.jobs.remove(job)
            raise

    # ---- small things -----------------------------------------------------------------------------------------

    def _course(self, request: TransferRequest, progress: Progress, cancelled: threading.Event) -> Course:
        timeout = request.timeout or DEFAULT_TIMEOUT
        return Course(request.op, next(self._transactions), timeout, progress, cancelled)

    def _target(self, job: Job, process: Process, transaction: int) -> Target:
        return Target(process, transaction, self, job.world, job.keeper)

    def _active(self, targets: list[Target]) -> Active:
        return Active(self.jobs, targets)

    def _link(self, targets: list[Target], which: str) -> float | None:
        """The slowest link of those used; None where none was measured, or its worker died since: what was done is."""
        rates: list[float] = []
        with suppress(GcrError):
            workers = [worker for target in targets for worker in target.workers()]
            rates += filter(None, (worker.arena().get(which) for worker in workers))
        return min(rates, default=None)

    def _job(self, request: CheckpointRequest, caller: Caller) -> Job:
        target = request.target
        try:
            job = self.jobs.find(target, caller.may_use)
        except NoSuchJob:
            if not isinstance(target, int):
                raise
            return self._foreign(target, request.backend, caller)
        caller.check_owner(job.owner, f"job {job.name}")
        _refuse_other_backend(job, request.backend)
        return job

    def _foreign(self, pid: int, backend: str | None, caller: Caller) -> Job:
        job = foreign_job(pid, backend, caller)
        _refuse_other_backend(job, backend)
        refuse_without_driver(pid, job.world)
        self.jobs.add(job)
        return job


def _refuse_other_backend(job: Job, wanted: str | None) -> None:
    if wanted and wanted != job.world.backend:
        raise BackendMissing(f"job {job.name} uses {job.world.backend}, not {wanted}", hint="leave --backend out")


@contextmanager
def saying_state(job: Job) -> Iterator[None]:
    """Every error of a command says in which state it leaves the job (docs/contract.md §4)."""
    try:
        yield
    except GcrError as error:
        error.state = error.state or reports.shown(job.state)
        raise
