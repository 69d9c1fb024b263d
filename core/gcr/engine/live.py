"""The copy of a program that runs, before it stops. The drain copies again what changes until then."""

from collections.abc import Sequence
from functools import partial

from gcr.control import ControlMeans
from gcr.engine.node import Course
from gcr.engine.progress import Copy, Meter
from gcr.engine.side_by_side import side_by_side
from gcr.engine.target import Target
from gcr.errors import UnsupportedState
from gcr.peers.worker import WorkerPeer


def copy_live(targets: Sequence[Target], course: Course, limit: float) -> int:
    """Copies targets that were prepared, within `limit` seconds. Returns bytes.

    Raises UnsupportedState, and the errors of workers.
    """
    refuse_its_own_copy(targets)
    meter = Meter(course, "copying live", sizes_of(targets))
    meter.start()
    pairs = [(target, worker) for target in targets for worker in target.workers()]
    done: list[int] = []
    side_by_side(partial(_copy, target, worker, meter, course.left(limit), done) for target, worker in pairs)
    course.mark("copied_live")
    return sum(done)


def _copy(target: Target, worker: WorkerPeer, meter: Meter, limit: float, done: list[int]) -> None:
    told = partial(meter.at, (target.pid, worker.device))
    found = worker.copies.copy_live(target.copy_name, target.owner, limit, told, may_compute_beside(target))
    done.append(found.copied)


def may_compute_beside(target: Target) -> bool:
    """Returns whether a kernel of gcr may run while the program does.

    NVIDIA's r580 does not preempt a context that it has checkpointed and restored: a kernel of another process waits
    until that of the program is over, and after 4.4 s the driver ends the program's context (Xid 109). Copies to the
    host do not wait. Seen on two H200 machines with the driver alone; docs/limitations.md.
    """
    return not target.process.suspension.was_saved or target.control.means is not ControlMeans.DRIVER


def refuse_its_own_copy(targets: Sequence[Target]) -> None:
    """Raises UnsupportedState where a program itself would have to copy."""
    for target in targets:
        if target.process.copied_out:
            text = f"process {target.pid} copies its data itself, and only while it is taken off the device"
            raise UnsupportedState(text, hint="gcr checkpoint without --live and --leave-running")


def sizes_of(targets: Sequence[Target]) -> dict[Copy, int]:
    return {(target.pid, device): n for target in targets for device, n in target.bytes_by_device.items()}
