"""Processes of a job that have yet to make their first call of a driver: they have nothing on a device.

Such a process has its driver loaded, say by an import. Its first call starts its agent, and waits for the daemon's
welcome. While its job is off its devices, or on its way, the welcome has it wait until the job runs again.
"""

import time
from collections.abc import Mapping

from gcr.api.barriers import Barrier
from gcr.api.reports import CheckpointReport, RestoreReport
from gcr.daemon import reports
from gcr.daemon.contexts import Contexts
from gcr.daemon.departures import ending
from gcr.daemon.foreign import with_driver
from gcr.daemon.images.imaging import Imaging
from gcr.daemon.images.order import nothing_to_image
from gcr.daemon.jobs import Job, Jobs
from gcr.daemon.residents import Residents
from gcr.engine.node import Course, Node, decide, undecide
from gcr.engine.restore import Restore
from gcr.engine.work import Options, Work
from gcr.errors import WrongState
from gcr.imageerrors import WrongImage
from gcr.job.decisions import DecisionRecord, ProcessDecision
from gcr.job.process import Process
from gcr.job.states import State
from gcr.processes import ProcessIdentity, identify


def free_devices(jobs: Jobs, token: str, residents: Residents, contexts: Contexts) -> None:
    """Evicts resident memory, and contexts that may leave, for the first process of a job, by its token: it may size
    itself by what is free.
    """
    job = jobs.with_token(token) if token else None
    if job is None or not job.begun:
        residents.free_all()
        contexts.make_way_everywhere()


def suspend(
    job: Job, jobs: Jobs, node: Node, course: Course, data_only: bool, imaging: Imaging | None
) -> CheckpointReport:
    """Suspends a job of which no process has made a call: nothing of it is on a device, and nothing comes there.

    Raises WrongState where that was done before, UnsupportedState for an image, RolledBack without a journal,
    JobEnding or NotAGpuProcess where the last process has just ended.
    """
    if job.decision is not None:
        raise WrongState(f"job {job.name} is {job.state} already", state=job.state, hint=f"gcr restore {job.name}")
    if imaging:
        raise nothing_to_image(job.name, imaging.order.stays)
    course.hold(Barrier.ADMITTED)
    course.mark("stop")
    while course.hold(Barrier.STILL) is not Barrier.STILL:
        pass  # ranks of other nodes were led meanwhile, and nothing here has a gate
    if not (waiting := _waiting(job, jobs)):
        raise ending(job)
    job.decision = _record(job, course, "data_only" if data_only else "checkpoint", waiting)
    try:
        decide(node.journal, job.decision)
    except BaseException:
        job.decision = None
        raise
    with jobs.lock:
        for pid, identity in waiting.items():
            process = job.processes.get(pid)
            if process is None or not process.identity.is_same(identity):  # the program before an exec
                process = job.processes[pid] = Process(job.name, identity)
            process.waits, process.suspension.transaction = True, course.transaction
            process.settle(State.DATA_SUSPENDED if data_only else State.SUSPENDED)
    course.mark("vram_free")
    options = Options.off_the_device(data_only)
    return reports.of_checkpoint(job, Work.of(job.name, (), node, course, options), None)


def _waiting(job: Job, jobs: Jobs) -> Mapping[int, ProcessIdentity]:
    """Returns, by pid, the processes with a driver loaded, and those that wait at their first call already."""
    loaded = {pid: identify(pid) for pid in with_driver(job)}
    with jobs.lock:
        at_the_gate = {process.identity.pid: process.identity for process in job.living}
    return {pid: identity for pid, identity in loaded.items() if identity} | at_the_gate


def _record(job: Job, course: Course, kind: str, waiting: Mapping[int, ProcessIdentity]) -> DecisionRecord:
    world = job.world
    return DecisionRecord(
        job.name,
        course.transaction,
        kind,
        time.time(),
        tuple(ProcessDecision(p.pid, p.start_time, {}, {}, stack=p.stack, waits=True) for p in waiting.values()),
        world.backend,
        world.simulated,
        dict(world.environment),
        cut=course.cut,
    )


def restore(job: Job, node: Node, course: Course, image: str | None) -> RestoreReport:
    """The inverse of `suspend`; the processes go on when the job is no longer busy.

    Raises WrongImage, WrongState, RolledBack.
    """
    if job.decision is None:
        raise WrongState(f"job {job.name} is not suspended", state=job.state, hint="gcr ps")
    if image:
        raise WrongImage(f"image {image} is of no process of {job.name}: none has had anything on a device")
    course.hold(Barrier.READY)
    undecide(node.journal, job.name)
    done = Restore(job.name, (), job.decision, node, course)
    job.decision = None
    for process in job.living:
        process.settle(State.RUNNING)
    course.mark("running")
    return reports.of_restore(job, done, None, {})
