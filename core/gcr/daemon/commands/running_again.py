"""Jobs that run again after their checkpoint: it was for an image alone, or the image failed, or a cut was given up."""

import logging
import time
from functools import partial

from msgspec.structs import replace

from gcr.api.barriers import Barrier
from gcr.api.reports import CheckpointReport
from gcr.api.requests import RestoreRequest
from gcr.daemon import reports
from gcr.daemon.commands import restore
from gcr.daemon.commands.asked import Asked
from gcr.daemon.commands.transaction import DEFAULT_TIMEOUT
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.images.imaging import Imaging
from gcr.daemon.images.outlet import withdraw
from gcr.daemon.jobs import Job
from gcr.engine.node import Course
from gcr.errors import GcrError, typed
from gcr.imageerrors import ImageFailed

log = logging.getLogger("gcr.daemon")


def running_again(node: Coordinator, job: Job, course: Course, report: CheckpointReport) -> CheckpointReport:
    """Restores a job that was suspended for its image alone. Returns the report of a job that runs on."""
    back = Course("restore", node.next_transaction(), DEFAULT_TIMEOUT, course.progress, course.cancelled)
    restore.bring_back(node, job, back, RestoreRequest(target=job.name), Asked(course.progress, course.cancelled))
    stopped_s = time.monotonic() - course.marks["stop"]
    return replace(report, state=reports.shown(job.state), vram_free_s=None, stop_s=stopped_s)


def restore_after_failure(
    node: Coordinator, job: Job, course: Course, request: RestoreRequest, failed: ImageFailed
) -> ImageFailed:
    """Restores a job after its image failed, unless another command has changed the job since. Returns the error."""
    if (not_back := _not_back(node, job, course, request, failed)) is not None:
        return not_back
    log.info("job %s: is %s again: its image failed: %s", job.name, reports.shown(job.state), failed.message)
    return ImageFailed(f"{failed.message}; the job is {reports.shown(job.state)}")


def await_others(node: Coordinator, job: Job, course: Course, request: RestoreRequest, imaging: Imaging) -> None:
    """Waits until the image of a part of a cut is durable, and then for those of the other nodes.

    Raises ImageFailed. After any other error the job runs again, and there is no image: CutGivenUp, Interrupted …
    """
    try:
        imaging.wait(course)
        if not imaging.streamed:  # else they were waited for before the decision
            course.hold(Barrier.DURABLE)
    except ImageFailed:
        raise
    except Exception as error:
        given_up = typed(error)
        if imaging.streamed:
            raise
        told = _not_back(node, job, course, request, given_up) or given_up
        if not imaging.done.is_set():
            imaging.ready().kill()
        imaging.fail(given_up)
        withdraw(imaging)
        raise told from error


def _not_back(
    node: Coordinator, job: Job, course: Course, request: RestoreRequest, failed: GcrError
) -> ImageFailed | None:
    """Restores a job that the checkpoint has suspended. Returns the error of one that could not be taken back."""
    back = Course("restore", node.next_transaction(), DEFAULT_TIMEOUT, course.progress)  # also when no caller waits
    suspended = partial(_suspended_by, job, course.transaction)
    try:
        if suspended():  # a job that runs on has nothing to take back, and others may be at it
            with node.jobs.changing(job, "restore"):
                if suspended():
                    restore.bring_back(node, job, back, request, Asked(course.progress, back.cancelled))
    except GcrError as error:
        log.warning("job %s was not taken back: %s", job.name, error)
        text = f"{failed.message}; and the job could not be taken back: {error.message}"
        return ImageFailed(text, hint=f"gcr restore {job.name}")
    return None


def _suspended_by(job: Job, transaction: int) -> bool:
    return job.decision is not None and job.decision.transaction == transaction
