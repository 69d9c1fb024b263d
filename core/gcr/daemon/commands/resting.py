"""`gcr checkpoint --stop` or `--processes` of a job that is suspended already: it goes into its image as it lies there.

Nothing moves on the devices. The steps are those of whole.py from `held` on. After a failure the job is suspended as
before.
"""

from collections.abc import Callable, Sequence

from gcr.api.reports import CheckpointReport
from gcr.api.requests import CheckpointRequest
from gcr.daemon import departures, reports
from gcr.daemon.commands import whole
from gcr.daemon.commands.transaction import suspended
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.images.imaging import Imaging
from gcr.daemon.jobs import Hold, Job
from gcr.engine.admit import refuse_as_a_whole, refuse_unconnected
from gcr.engine.node import Course
from gcr.engine.target import Target
from gcr.errors import UnsupportedState, WrongState
from gcr.job.states import State

_AT_REST = (State.SUSPENDED, State.DATA_SUSPENDED)


def rests(job: Job) -> bool:
    """Returns whether each process of the job that has begun is suspended, by gcr's own books."""
    return bool(job.begun) and all(process.state in _AT_REST for process in job.begun)


def into_image(
    node: Coordinator, hold: Hold, course: Course, request: CheckpointRequest, image: Callable[[], Imaging | None]
) -> tuple[CheckpointReport, Imaging, whole.Whole]:
    """Publishes the image, and ends the processes or has their agents come back.

    Raises WrongState, UnsupportedState and as `Whole.carry_out`; then the job is suspended as it was.
    """
    job = hold.job
    _refuse_elsewhere(job)
    targets = _targets(node, job)
    saving = whole.begun(node, job, course, request)
    saving.resumes = False
    imaging = None
    try:
        imaging = image()
        assert imaging
        saving.look()
        saving.may_begin()
        imaging.may_begin(targets, course)
        nbytes = sum(sum(target.bytes_by_device.values()) for target in targets)
        report = reports.of_resting(job, nbytes, saving.left_on_devices())
        job.results.tell(report, course.began)
        saving.carry_out(imaging, not request.timeout)
    except BaseException:
        if imaging:
            imaging.close()
        raise
    finally:
        saving.close()
    return report, imaging, saving


def _refuse_elsewhere(job: Job) -> None:
    """Raises WrongState where the bytes of the job are not in host memory."""
    if job.decision is None or job.decision.kind == "driver":
        raise WrongState(f"job {job.name} is suspended already", state=job.state, hint=f"gcr restore {job.name}")
    if kept := job.decision.image:
        text = f"job {job.name} is suspended already, and image {kept.name or 'of its checkpoint'} alone has its bytes"
        raise WrongState(text, state=job.state, hint=f"gcr restore {job.name}; then checkpoint it with --stop")


def _targets(node: Coordinator, job: Job) -> list[Target]:
    """Raises UnsupportedState; JobEnding where no process is left."""
    if not (there := departures.staying(job.begun)):
        raise departures.ending(job)
    targets = suspended(node, job, there)
    _refuse_contexts(targets)
    for target in targets:
        refuse_unconnected(target)
        target.look()
        refuse_as_a_whole(target)
    return targets


def _refuse_contexts(targets: Sequence[Target]) -> None:
    """Raises UnsupportedState if a process has its context on the device and no plugin of CRIU's saves that."""
    left = [each for each in targets if each.keeps_context or each.process.state == State.DATA_SUSPENDED]
    if left and not whole.takes_contexts(targets):
        refused: UnsupportedState = whole.context_stays(left[0])
        if left[0].keeps_context:
            raise refused
        refused.hint = f"gcr restore {left[0].process.job}; then checkpoint it with --stop"
        raise refused
