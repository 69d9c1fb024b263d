"""`gcr checkpoint` of a job that `--data-only` has suspended: its control state leaves the devices, too.

Memory that is resident goes with it, or stays with `--resident`. A failure leaves the job data-suspended, as it was.
"""

from functools import partial
from threading import Event

from msgspec.structs import replace

from gcr.api.reports import CheckpointReport
from gcr.api.requests import CheckpointRequest
from gcr.control import ControlMeans
from gcr.daemon import departures, reports
from gcr.daemon.commands.asked import Asked
from gcr.daemon.commands.evicting import resident_of
from gcr.daemon.commands.resting import rests
from gcr.daemon.commands.telling import telling
from gcr.daemon.commands.transaction import carry_out, course_of, target_of
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.jobs import Job
from gcr.engine.admit import refuse_as_inspected, refuse_unconnected
from gcr.engine.node import Course
from gcr.engine.routes import context
from gcr.engine.target import Target
from gcr.engine.work import Options, Work
from gcr.errors import WrongState
from gcr.job.process import Process
from gcr.job.states import State


def data_first(node: Coordinator, job: Job, request: CheckpointRequest) -> CheckpointRequest:
    """Returns the request for the data alone, where the context may leave later and can."""
    if not request.context_later or node.control(job.world).means is not ControlMeans.DRIVER:
        return request
    return replace(request, data_only=True)


def saved(node: Coordinator, job: Job, course: Course, request: CheckpointRequest) -> CheckpointReport | None:
    """Returns the report once the devices count nothing of the job; None where this is not what is asked for.

    Raises UnsupportedState where the driver cannot save a process; JobEnding, DriverError, RolledBack.
    """
    if request.data_only or request.image is not None or not _has_contexts(node, job):
        return None
    return departures.without_departed(job, partial(_saved, node, job, course, request))


def make_way(node: Coordinator, job: Job) -> None:
    """Has the context of a job leave, since another program wants the room. Commands on the job wait for the end of it.

    Raises WrongState where a command has its turn at the job, or no context is left there; as `saved`.
    """
    request = CheckpointRequest(target=job.name, resident=True)
    asked = Asked(lambda _event: None, Event())
    course = course_of(node, request, asked)
    with node.jobs.changing(job, "make way", waited_for=True):
        if not _has_contexts(node, job):
            raise WrongState(f"job {job.name} is {job.state}", state=job.state, hint="gcr ps")
        with telling(node, job, course, asked, None) as story:
            story.begun()
            report = saved(node, job, course, request)
            assert report
            story.done(report)


def _has_contexts(node: Coordinator, job: Job) -> bool:
    """Tells whether the job is data-suspended, and its control state can be saved from outside its processes."""
    begun = rests(job) and not any(process.waits for process in job.begun)
    data_only = begun and all(process.state == State.DATA_SUSPENDED for process in job.begun)
    return data_only and node.control(job.world).means is ControlMeans.DRIVER


def _saved(node: Coordinator, job: Job, course: Course, request: CheckpointRequest) -> CheckpointReport:
    if not (there := departures.staying(job.begun)):
        raise departures.ending(job)
    targets = [_target(node, job, process) for process in there]
    work = Work.of(job.name, targets, node, course, Options(resident=request.resident))
    work.decision = job.decision
    carry_out(node, job, context.plan_of(work), targets)
    job.decision = work.decision
    departures.settle_ends(job)
    report = reports.of_context(job, work, resident_of(node, targets))
    job.results.tell(report, course.began)
    return report


def _target(node: Coordinator, job: Job, process: Process) -> Target:
    """Returns a process with its books: what it has in host memory, and its context by the device's own count."""
    target = target_of(node, job, process, process.suspension.transaction)
    refuse_unconnected(target)
    target.come_back({})
    view = target.control.inspect(target.pid)
    refuse_as_inspected(view, heard=True)
    target.books.counts = view.bytes_by_device
    for device in target.bytes_by_device:
        target.books.unexplained[device] = max(0, target.worker(device).counted(target.pid)[1])
    return target
