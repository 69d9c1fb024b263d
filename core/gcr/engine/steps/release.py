"""COMMIT: every descriptor of device memory is closed, everywhere; then the device itself is asked.

Of memory that stays on its device the worker alone keeps descriptors.
"""

from functools import partial

from gcr.engine.side_by_side import side_by_side
from gcr.engine.steps.resident import stays
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.work import Work
from gcr.job.states import State


def release(work: Work) -> None:
    """Releases the memory of a job that is decided to be suspended, and waits until the device counts it free."""
    side_by_side(partial(_release_one, work, target) for target in work.targets)
    for target in work.targets:
        if target.process.state != State.EXITED:  # one that died after the decision stops no other
            target.process.move(State.DATA_SUSPENDED if work.options.data_only else State.SUSPENDED)
    work.count.wait()
    work.course.mark("vram_free")


def _release_one(work: Work, target: Target) -> None:
    work.ballasts.settle(target)
    for worker in target.workers():
        if not stays(work, target, worker):
            quietly("release", partial(worker.release, target.hold))
        if work.stream:  # there is no copy with it that the process could come back from
            quietly("give the ring back", partial(worker.copies.forget_copy, target.copy_name))
    quietly("drop", lambda: target.keeper().drop(target.pid))
    target.spare.close()
    work.course.reach("committed_one")
