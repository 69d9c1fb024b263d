"""`gcr checkpoint`: a job leaves its devices, or an image is made of it while it runs."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from gcr.api.reports import CheckpointReport
from gcr.api.requests import CheckpointRequest, RestoreRequest
from gcr.daemon import departures, first_call, reports
from gcr.daemon.active import Active
from gcr.daemon.commands import container, context, evicting, parking, resting, whole
from gcr.daemon.commands.asked import Asked
from gcr.daemon.commands.connecting import await_agents
from gcr.daemon.commands.head_start import HeadStart, head_start, refuse_then
from gcr.daemon.commands.running_again import await_others, restore_after_failure, running_again
from gcr.daemon.commands.telling import Story, telling
from gcr.daemon.commands.transaction import (
    carry_out,
    course_of,
    refuse_other_backend,
    slowest_link,
    target_of,
)
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.cuts import refuse_to_suspend
from gcr.daemon.foreign import await_hello, foreign_job, refuse_unheard_beside, refuse_without_driver
from gcr.daemon.images.imaging import Imaging, asked_for
from gcr.daemon.images.order import Told, at_home
from gcr.daemon.images.outlet import HeldImage, imaged
from gcr.daemon.images.shown import reported
from gcr.daemon.jobs import Hold, Job
from gcr.daemon.permission import OURSELVES, Caller
from gcr.engine.admit import admit, refuse_what_the_driver_refuses
from gcr.engine.driver_swap import DriverSwap
from gcr.engine.node import Course, phases
from gcr.engine.plan import Plan
from gcr.engine.routes import checkpoint, driver, running_on
from gcr.engine.steps.resident import refuse_means_that_leave
from gcr.engine.target import Target
from gcr.engine.work import Options, Work
from gcr.errors import NoSuchJob, UnsupportedState, WrongState
from gcr.imageerrors import ImageFailed
from gcr.job.migrations import refuse_to_leave
from gcr.job.runs import STOPPED
from gcr.job.states import State, Strategy, Way
from gcr.processes import alive

log = logging.getLogger("gcr.daemon")

Saving = whole.Whole | container.Leaving  # the way of what an image has besides device memory
Taken = tuple[CheckpointReport, Imaging | None, Saving | None]

POLL = 0.01
GONE_S = 10.0  # for the supervisor of a job that was stopped to say so


def run(node: Coordinator, request: CheckpointRequest, asked: Asked) -> CheckpointReport:
    """Raises NotOurs for another user's job."""
    request = at_home(request, asked.caller)
    course = course_of(node, request, asked)
    job = _job(node, request, asked.caller)
    if request.container and (done := container.report_of(job, request)):
        return done
    refuse_then(node, job, request, asked.caller)
    joining = node.cuts.joining(request, job, course, node.config.cut_s)
    with telling(node, job, course, asked, request.image) as story, joining:
        return story.done(_carried_out(node, job, course, request, asked, story))


def _carried_out(
    node: Coordinator, job: Job, course: Course, request: CheckpointRequest, asked: Asked, story: Story
) -> CheckpointReport:
    told = Told(job.name, partial(node.jobs.history.note, job.owner))
    image = _images(node, course, request, asked.key, asked.caller, told)
    await_agents(node, job, course)
    with node.jobs.changing(job, "checkpoint", beside_readers=request.leave_running) as hold:
        story.begun()
        _refuse_suspended(job)
        if request.stop:
            refuse_to_leave(job.name, request.image)
        if request.cut:
            refuse_to_suspend(job)
        request = context.data_first(node, job, request)
        if done := context.saved(node, job, course, request):
            return done
        if request.evicts and (done := evicting.evicted(node, job, course)):
            return done
        if request.resident:
            refuse_means_that_leave(node.control(job.world).means)
        with parking.privately(node, job, course, request) as private:
            if private:
                return _parked(node, hold, course, private)
        at_rest = request.whole and not request.leave_running and resting.rests(job)
        way: Callable[..., Taken] = resting.into_image if at_rest else _taken_off
        report, imaging, saving = way(node, hold, course, request, image)
    if saving and imaging:
        return _of_the_whole(node, job, course, report, imaging, saving)
    if imaging:
        job.results.add(imaging)
        back = RestoreRequest(target=request.target)
        try:
            imaging.check()
            if request.cut:
                await_others(node, job, course, back, imaging)
            elif request.wait == "durable":
                imaging.wait(course)
        except ImageFailed as failed:
            raise restore_after_failure(node, job, course, back, failed) from failed
        former, report = report, reported(imaging, report)
        job.results.amend(former, report)
    return report


def _refuse_suspended(job: Job) -> None:
    """Raises WrongState where nothing of the job is here that could leave."""
    if job.supervision.parked or (job.decision and (job.decision.kind == "driver" or job.decision.away)):
        by_driver = job.decision is not None and job.decision.kind == "driver"
        text = f"{'process' if by_driver else 'job'} {job.name} is suspended already"
        raise WrongState(text, state=job.state, hint=f"gcr restore {job.name}")


def _taken_off(
    node: Coordinator, hold: Hold, course: Course, request: CheckpointRequest, image: Callable[[], Imaging | None]
) -> Taken:
    """Takes a job off its devices, or makes an image of it while it runs."""
    job = hold.job
    with _forgetting_untouched(node, job):
        saving = _saving(node, job, course, request)
        try:
            attempt = partial(_attempted, node, hold, course, request, image, saving)
            report, imaging = departures.without_departed(job, attempt)
            job.results.tell(report, course.began)
            if saving and imaging:
                saving.carry_out(imaging, not request.timeout)
        finally:
            if saving:
                saving.close()
        if saving and request.leave_running:
            report = running_again(node, job, course, report)
    return report, imaging, saving


def _saving(node: Coordinator, job: Job, course: Course, request: CheckpointRequest) -> Saving | None:
    if request.container:
        return container.begun(node, job, course)
    return whole.begun(node, job, course, request) if request.whole else None


def _images(
    node: Coordinator, course: Course, request: CheckpointRequest, key: Sequence[int], caller: Caller, told: Told
) -> Callable[[], Imaging | None]:
    """Returns what begins the image of each attempt at a request."""
    patience = node.config.store_s
    return partial(asked_for, request, key, node.fleet.image_helper, course.began, patience, caller, [], told)


def _parked(node: Coordinator, hold: Hold, course: Course, private: parking.Private) -> CheckpointReport:
    """Suspends a job in place by way of a private image, which has its processes then."""
    job, request = hold.job, private.request
    image = _images(node, course, request, (), OURSELVES, Told(job.name))
    saving = whole.begun(node, job, course, request, private.place)
    try:
        attempt = partial(_attempted, node, hold, course, request, image, saving)
        report, imaging = departures.without_departed(job, attempt)
        assert imaging
        job.results.tell(report, course.began)
        saving.carry_out(imaging, not request.timeout)
        imaging.close()
        return parking.settled(node, job, course, report, saving)
    finally:
        saving.close()


def _of_the_whole(
    node: Coordinator, job: Job, course: Course, report: CheckpointReport, imaging: Imaging, saving: Saving
) -> CheckpointReport:
    """Returns the report on a job that is in its image; if it has ended, once nothing of it is left here."""
    ended, end = saving.ends, time.monotonic() + GONE_S
    told = replace(reported(imaging, report), phases_s=phases(course.marks, course.began))
    told = replace(told, state=STOPPED, vram_after_bytes=saving.left_on_devices()) if ended else told
    job.results.amend(report, told)
    job.results.add(imaging)
    imaging.close()
    while ended and job in node.jobs.all() and time.monotonic() < end:
        node.jobs.settle(job)
        time.sleep(POLL)
    return told


def _attempted(
    node: Coordinator,
    hold: Hold,
    course: Course,
    request: CheckpointRequest,
    image: Callable[[], Imaging | None],
    saving: Saving | None,
) -> tuple[CheckpointReport, Imaging | None]:
    hold.take_again()
    imaging = image()
    return Attempt(node, hold, course, request, imaging, saving).carry_out(), imaging


def _job(node: Coordinator, request: CheckpointRequest, caller: Caller) -> Job:
    target = request.target
    try:
        job = node.jobs.find(target, caller.may_use)
    except NoSuchJob as unknown:
        if not isinstance(target, int):
            raise
        return _foreign(node, target, request.backend, caller, unknown)
    caller.check_owner(job.owner, f"job {job.name}")
    refuse_other_backend(job, request.backend)
    return job


def _foreign(node: Coordinator, pid: int, backend: str | None, caller: Caller, unknown: NoSuchJob) -> Job:
    job = foreign_job(pid, backend, caller, unknown)
    refuse_other_backend(job, backend)
    refuse_without_driver(pid, job.world)
    node.jobs.add(job)
    return job


@contextmanager
def _forgetting_untouched(node: Coordinator, job: Job) -> Iterator[None]:
    """Forgets, after an error, a job of a process that gcr did not start and left as it was."""
    try:
        yield
    except BaseException:
        if any(process.strategy == Strategy.DRIVER and process.state == State.RUNNING for process in job.living):
            node.jobs.release(job)
        raise


class Attempt(Struct, frozen=True):
    """One attempt to take a job off its devices, or to make an image of it."""

    node: Coordinator
    hold: Hold
    course: Course
    request: CheckpointRequest
    imaging: Imaging | None
    saving: Saving | None = None

    @property
    def job(self) -> Job:
        return self.hold.job

    def carry_out(self) -> CheckpointReport:
        try:
            return self._by_route()
        except BaseException:
            if self.imaging and self.imaging.begun:  # also where a later step failed
                self.job.results.add(self.imaging)
            elif self.imaging:
                self.imaging.close()
            raise

    def _by_route(self) -> CheckpointReport:
        if any(p.strategy == Strategy.DRIVER for p in self.job.living):
            return self._by_driver()
        targets = self._admitted()
        if self.saving:
            self.saving.look()
        if not targets:
            self.node.forget_decision(self.job)  # about a program that has called exec since
            data_only = self.request.data_only
            return first_call.suspend(self.job, self.node.jobs, self.node, self.course, data_only, self.imaging)
        if self.imaging and self.request.leave_running and not self.saving:
            return self._glance(targets, self.imaging)
        return self._checkpoint(targets)

    def _glance(self, targets: list[Target], imaging: Imaging) -> CheckpointReport:
        job, course, request = self.job, self.course, self.request
        may_stop = partial(imaging.may_begin, targets, course)
        options = Options(Way.RUNNING_ON, request.live, request.paranoid)
        work = Work.of(job.name, targets, self.node, course, options)
        with Active(self.node.jobs, targets), self._noting_failure(imaging):
            try:
                behind = running_on.cut(work, may_stop, partial(imaging.baselines, course))
            except BaseException:
                departures.settle_ends(job)
                self.node.recovery.begin_if_uneven(job)
                raise
        created = time.time()
        with behind.undo.unless_it_fails():
            self.node.jobs.leave(self.hold)  # to the next cut, which may begin while the copies of this one are read
        with self._noting_failure(imaging):
            behind.finish(imaging.lend)
        imaging.write([target for target in targets if target.bytes_by_device], created, course, job.program.pid)
        return reports.of_glance(job, work, slowest_link(targets, lambda arena: arena.link_out_bytes_per_s))

    @contextmanager
    def _noting_failure(self, imaging: Imaging) -> Iterator[None]:
        """Lets others ask for the reason where the image fails although the job runs on. Raises ImageFailed."""
        try:
            yield
        except ImageFailed as error:
            imaging.fail(error)
            self.job.results.add(imaging)
            imaging.check()
            raise

    def _admitted(self) -> list[Target]:
        """Returns the targets; none before any process of the job has made its first call."""
        node, job, course = self.node, self.job, self.course
        heard = await_hello(job, course.left, lambda: node.control(job.world))
        there = departures.staying(heard)
        if heard and not there:
            raise departures.ending(job)
        targets = [target_of(node, job, process, course.transaction) for process in there]
        admit(targets, whole=self.saving is not None)
        refuse_unheard_beside(job, self._heard, node.control(job.world), course.left)
        return targets

    def _heard(self) -> set[int]:
        """Returns the pids of all processes with an agent, and of the workers, which have a context."""
        ours = {worker.pid for worker in self.node.fleet.living_workers()}
        return ours.union(*(job.processes for job in self.node.jobs.all()))

    def _checkpoint(self, targets: list[Target]) -> CheckpointReport:
        node, job, course, imaging = self.node, self.job, self.course, self.imaging
        data_only = self.request.data_only or (self.saving is not None and whole.takes_contexts(targets))
        if not data_only:
            refuse_what_the_driver_refuses(targets)
        keeping = [t for t in targets if t.keeps_context and not data_only]
        if keeping and self.saving:
            raise whole.context_stays(keeping[0])
        node.jobs.claim(job, {device for target in keeping for device in target.books.counts})
        asked = self.request
        resident, later, ends = asked.resident, asked.context_later, self.saving is not None and self.saving.ends
        options = Options.off_the_device(data_only, asked.live, asked.paranoid, resident, later, ends)
        work = Work.of(job.name, targets, node, course, options)
        try:
            with head_start(node, asked) as beside:
                carry_out(node, job, self._plan(work, beside), targets)
        except Exception as error:
            if imaging and imaging.streamed and not work.decision:
                imaging.fail(error)
            raise
        job.decision = work.decision
        if not any(alive(target.process.identity) for target in targets):  # even if the daemon has not heard of it yet
            node.forget_decision(job)
            raise departures.ending(job)
        departures.settle_ends(job)
        if work.count.resident:
            evicting.keep_spare(work, node.residents)
        if imaging and imaging.streamed:
            imaging.close()
        elif imaging and work.decision and not self.saving:
            imaging.write_staged(targets, work.decision.decided_at, course)
        return reports.of_checkpoint(job, work, slowest_link(targets, lambda arena: arena.link_out_bytes_per_s))

    def _plan(self, work: Work, beside: HeadStart | None) -> Plan:
        imaging = self.imaging
        if imaging and self.saving:
            upon = checkpoint.Upon(partial(imaging.baselines, self.course), imaging.lend)
            may_stop = partial(self._may_stop, list(work.targets), imaging, self.saving)
            held = HeldImage(imaging, self.course)
            return checkpoint.plan_of(work, may_stop, upon=upon if self.request.live else None, held=held)
        if imaging:
            return imaged(work, imaging, not self.request.timeout, partial(self.job.results.add, imaging))
        return checkpoint.plan_of(work, beside=beside)

    def _may_stop(self, targets: list[Target], imaging: Imaging, saving: Saving) -> None:
        saving.may_begin()
        saving.prepare(sum(sum(target.bytes_by_device.values()) for target in targets))
        imaging.may_begin(targets, self.course)

    def _by_driver(self) -> CheckpointReport:
        (process,) = self.job.living
        if self.request.resident:
            text = f"the driver alone moves the data of process {self.job.name}: it cannot stay on the device"
            raise UnsupportedState(text, hint="start it with gcr run")
        if self.imaging:
            text = f"the driver alone has the data of process {self.job.name}: gcr has nothing to make an image of"
            raise UnsupportedState(text, hint="start it with gcr run")
        swap = DriverSwap(process, self.node, self.job.world, self.course)
        driver.checkpoint_of(swap).run()
        self.job.decision = self.node.journal.record(self.job.name)
        return reports.of_driver_checkpoint(self.job, swap)
