"""`gcr restore` of a job that its container's runtime was to save: its agents come back, in place or under other pids.

In place the processes live on: the runtime's checkpoint failed, or let them go. Under other pids the runtime has
restored them, and each names itself as before, in its own namespace. Their agents have come by themselves, since no
mark keeps them away, and wait at the closed gate: this daemon may never have heard of them. The image has the record.
"""

import logging
import time
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from gcr.api.requests import RestoreRequest
from gcr.daemon.commands.absence import Absence
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.ended import note_contained
from gcr.daemon.jobs import Job
from gcr.engine.node import Course, decide
from gcr.errors import RolledBack, WrongState
from gcr.imageerrors import NotRestored, WrongImage
from gcr.job.contained import ContainedJob
from gcr.job.decisions import DecisionRecord, KeptImage
from gcr.job.placement import Placement
from gcr.job.process import Process
from gcr.job.states import State
from gcr.processes import alive, label_of, shares_namespaces

log = logging.getLogger("gcr.daemon")

POLL = 0.02
ARRIVE_S = 5.0  # for the agents of a container that was just restored


def described(request: RestoreRequest) -> ContainedJob | None:
    """Returns the job of a container's image; None for any other request. Raises Damaged."""
    return ContainedJob.of_text(request.container.encode()) if request.container else None


def arrived(node: Coordinator, known: ContainedJob, image: str, course: Course, may_use: Callable[[int], bool]) -> Job:
    """Returns the job of an image, once all its processes are here. Raises NotRestored, WrongState."""
    end = time.monotonic() + min(ARRIVE_S, course.left(ARRIVE_S))
    labels = {label for label, _ in known.labels}
    while True:
        job = _job_of(node, known, may_use)
        missing = labels - _called(job).keys() if job else labels
        if job and not missing:
            return job
        if time.monotonic() > end:
            raise _not_there(known, image, len(missing))
        time.sleep(POLL)


def call_back(node: Coordinator, job: Job, known: ContainedJob | None, image: str | None) -> None:
    """Has the agents of a job return that live on in their container. Does nothing for any other job.

    image: the one that was asked for, None for none · known: the job in it
    Raises WrongImage for any but that of the job; WrongState where an agent does not come, and the job stays suspended.
    """
    decision = job.decision
    if decision is None or not decision.away:
        return
    if image and (known is None or known.decision.transaction != decision.transaction):
        raise _of_another(job, image)
    try:
        Absence(job, decision.away).call_back()
    except RolledBack as error:
        hint = f"is the container paused? gcr restore {job.name}, once it runs"
        raise WrongState(error.message, state=job.state, hint=hint) from error
    _decide(node, job, replace(decision, away=""))
    job.ends.stopped_into = None


def take_in(node: Coordinator, job: Job, known: ContainedJob, image: KeptImage) -> None:
    """Decides that the processes of a restored container are those of the image. Does nothing for a job in place.

    Raises WrongImage where they were suspended at another time, WrongState for those of two containers.
    """
    if job.decision is None or not job.decision.is_without_image:
        return
    here = _called(job)
    for process in here.values():
        transaction = process.agent.hello.transaction
        if transaction != known.decision.transaction:
            raise _of_another(job, image.name)
    record = known.as_returned(job.name, {label: each.identity for label, each in here.items()}, image)
    world = job.world
    own = replace(record, backend=world.backend, simulated=world.simulated, environment=dict(world.environment))
    _decide(node, job, own)
    for process in here.values():
        _suspend(process, own)
    note_contained(job)


def _decide(node: Coordinator, job: Job, record: DecisionRecord) -> None:
    decide(node.journal, record)
    job.decision = record


def _suspend(process: Process, decision: DecisionRecord) -> None:
    for each in decision.processes:
        if each.pid == process.identity.pid:
            process.suspension.transaction = decision.transaction
            process.suspension.bytes_by_device = dict(each.bytes)
            process.suspension.ballast_by_device = dict(each.ballast)
            process.suspension.placement = Placement(each.now, each.tried)
            process.copied_out = each.copied_out
            process.settle(State.DATA_SUSPENDED if decision.data_only else State.SUSPENDED)


def _job_of(node: Coordinator, known: ContainedJob, may_use: Callable[[int], bool]) -> Job | None:
    jobs = [job for job in node.jobs.all() if may_use(job.owner)]
    token = next((job for job in jobs if job.token == known.token), None)
    away = (job for job in jobs if job.decision and job.decision.away == known.token)
    return token or next(away, None)


def _called(job: Job) -> Mapping[int, Process]:
    """Returns the living processes by the pids by which they call themselves. Raises WrongState for two containers."""
    there = [process for process in job.living if alive(process.identity)]
    for process in there[1:]:
        one, other = there[0].identity.pid, process.identity.pid
        if not shares_namespaces(other, ("pid",), one):
            text = f"processes {one} and {other} are both of job {job.name}, in two containers"
            raise WrongState(text, state=job.state, hint="end one of the containers; gcr ps")
    return {label_of(process.identity.pid): process for process in there}


def _of_another(job: Job, image: str) -> WrongImage:
    text = f"image {image} is of another suspension of {job.name} than its container's checkpoint"
    return WrongImage(text, hint="gcr images: each checkpoint of a container belongs to one image")


def _not_there(known: ContainedJob, image: str, missing: int) -> NotRestored:
    text = f"{missing} of {len(known.labels)} processes of image {image} have not come"
    return NotRestored(text, hint="restore the container first, runc restore say; then this command again")
