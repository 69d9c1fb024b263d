"""`gcr checkpoint` in place where a driver saves no living process: the processes end, and `gcr restore` makes them.

A private image keeps the job meanwhile (gcr.parked), and the supervisor stays. The steps before are those of --stop, in
whole.py.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from gcr.api.reports import CheckpointReport
from gcr.api.requests import CheckpointRequest
from gcr.control import ControlMeans
from gcr.daemon.commands import whole
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.cuts import refuse_to_park
from gcr.daemon.foreign import await_hello
from gcr.daemon.jobs import Job
from gcr.declarations import declarations
from gcr.engine.node import Course, phases
from gcr.errors import CriuUnusable, GcrError, UnsupportedState
from gcr.imageerrors import CannotSave
from gcr.job.process import Process
from gcr.job.runs import identifier
from gcr.job.states import State, Strategy
from gcr.memory.hostmemory import available_host_bytes
from gcr.parked import IMAGE, Place, private_place
from gcr.processmemory import resident

log = logging.getLogger("gcr.daemon")

POLL = 0.005
DATA_ONLY = "--data-only, which leaves the context where it is"
GONE_S = 10.0  # for the ends of the processes to be heard


class Private(Struct, frozen=True):
    """A request for a private image, and the place of that image."""

    request: CheckpointRequest
    place: Place


@contextmanager
def privately(node: Coordinator, job: Job, course: Course, request: CheckpointRequest) -> Iterator[Private | None]:
    """Yields the way by a private image, where a checkpoint in place needs it; else None.

    The image goes with the block, unless the job is parked there by then.
    Raises UnsupportedState where no supervisor could bring the processes back, CannotHold in a cut over several nodes;
    NotAGpuProcess, and as `begun`.
    """
    if not _goes_this_way(node, job, course, request):
        yield None
        return
    if request.cut:
        refuse_to_park(job)
    if not (job.supervision.lasts and job.supervision.parks):
        text = (
            f"no gcr run of this version is the parent of {job.name}, and only such a parent makes its processes again"
        )
        raise UnsupportedState(text, hint=f"--image NAME --stop; or {DATA_ONLY}")
    with private_place(job.name, identifier(job.token), _needed(job), available_host_bytes()) as place:
        try:
            asked = replace(request, image=IMAGE, store=place.store, stop=True, then=None)  # its copy is in an image
            yield Private(asked, place)
        except (CannotSave, CriuUnusable) as error:
            error.hint = "; or ".join(filter(None, (error.hint, DATA_ONLY)))
            raise


def _goes_this_way(node: Coordinator, job: Job, course: Course, request: CheckpointRequest) -> bool:
    if request.image or request.data_only or any(p.strategy == Strategy.DRIVER for p in job.living):
        return False
    declared = declarations().get(job.world.backend)
    if declared is None or not declared.criu_plugin:  # no helper is asked, which would have to be started
        return False
    heard = await_hello(job, course.left, lambda: node.control(job.world))
    return bool(heard) and node.control(job.world).means is ControlMeans.PROCESS


def _needed(job: Job) -> int:
    """Returns the bytes of the image: of the processes, and of all that they have on devices."""
    return sum(resident(each.identity.pid) + _on_devices(each) for each in job.begun)


def _on_devices(process: Process) -> int:
    try:
        status = process.look()
    except GcrError as error:  # the checkpoint itself will say what is wrong
        log.info("job %s: process %d: %s", process.job, process.identity.pid, error)
        return 0
    return sum(each.covered_bytes for each in status.devices) + sum(each.bytes for each in status.uncovered)


def settled(
    node: Coordinator, job: Job, course: Course, report: CheckpointReport, saving: whole.Whole
) -> CheckpointReport:
    """Waits until nothing is left of the processes of a job that was parked. Returns the report."""
    end = time.monotonic() + GONE_S
    while job.processes and time.monotonic() < end:
        node.jobs.settle(job)
        time.sleep(POLL)
    node.forget_decision(job)  # it is about the processes that have ended
    course.mark("vram_free")
    told = replace(
        report,
        state=State.SUSPENDED.value,
        vram_free_s=course.since_start("vram_free"),
        stop_s=course.between("stop", "vram_free"),
        vram_after_bytes=saving.left_on_devices(),
        phases_s=phases(course.marks, course.began),
    )
    job.results.amend(report, told)
    return told
