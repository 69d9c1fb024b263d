"""`gcr restore` of a parked job: its supervisor makes the processes again, suspended, from the private image."""

from collections.abc import Iterator
from contextlib import contextmanager

from gcr.api.requests import RestoreRequest
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.images.imaging import NO_TIMEOUT
from gcr.daemon.jobs import Job
from gcr.engine.node import Course
from gcr.errors import GcrError, UnsupportedState, WrongState
from gcr.imageerrors import WrongImage
from gcr.job.decisions import KeptImage


def make_processes(node: Coordinator, job: Job, course: Course, request: RestoreRequest) -> None:
    """Has the supervisor of a parked job make its processes. Does nothing for any other job.

    They are suspended then, and their agents on their way. After an error the job is parked as before.
    Raises WrongState, WrongImage, UnsupportedState; NotRestored, FilesChanged and others of the supervisor's.
    """
    with _alone(job):
        kept = job.supervision.parked
        if kept is None:
            return
        _refuse_otherwise(node, job, request, kept)
        supervisor = job.supervision.supervisor
        if supervisor is None or not job.supervision.lasts:
            text = f"the parent of job {job.name} is gone, and its image is not"
            raise WrongState(text, hint=f"gcr restore --image {kept.name} --store {kept.store}")
        node.jobs.settle(job)  # processes of an attempt that failed
        course.tell("reviving")
        try:
            supervisor.unpark(course.left(NO_TIMEOUT) if request.timeout else NO_TIMEOUT)
        except GcrError as error:
            node.jobs.settle(job)
            if not job.supervision.lasts:  # the processes may have ended with it; the image is there in any case
                error.hint = f"gcr restore {job.name} brings it back, or says how"
            raise
        job.supervision.parked = None
        course.mark("revived")


@contextmanager
def _alone(job: Job) -> Iterator[None]:
    """Raises WrongState while another command brings the processes back."""
    lock = job.supervision.unparking
    if not lock.acquire(blocking=False):
        raise WrongState(f"job {job.name} is being restored just now", state=job.state)
    try:
        yield
    finally:
        lock.release()


def _refuse_otherwise(node: Coordinator, job: Job, request: RestoreRequest, kept: KeptImage) -> None:
    """Raises WrongImage for another image, UnsupportedState for other devices."""
    if request.image and (request.image, request.store) != (kept.name, kept.store):
        text = f"image {request.image} is of no process of {job.name}: its processes have ended, and come back first"
        raise WrongImage(text, hint=f"gcr restore {job.name}")
    if request.devices:
        node.control(job.world).check_move(request.devices)
        text = f"job {job.name} comes back on the devices that it left: what the driver keeps of it is theirs"
        raise UnsupportedState(text, hint=f"gcr restore {job.name}")
