"""FREEZE alone: the driver saves the control state of a job that `--data-only` has suspended.

The bytes lie where the checkpoint of the data left them. So the decision that stands is amended, and nothing is staged.
"""

from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from gcr.engine.node import decide as write
from gcr.engine.side_by_side import side_by_side
from gcr.engine.steps.freeze_and_drain import freeze, thaw
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.job.decisions import ProcessDecision, text_of
from gcr.job.states import State, Way


class FreezeAlone(Struct, frozen=True):
    """Locks every process, then saves the control state of each. A failure leaves their data suspended, as before."""

    work: Work

    def do(self, undo: Transaction) -> None:
        work = self.work
        work.course.tell("freezing")
        work.ballasts.room.look()
        work.course.mark("prepared")
        for target in work.targets:
            undo.push("freeze", partial(thaw, work, target))
        freeze(work)
        work.course.left(work.node.config.stage_s)


def decide(work: Work) -> None:
    """Writes down that the control state has left as well. Raises RolledBack."""
    former = work.decision
    assert former
    ballast = {
        target.pid: {device: work.ballasts.of(target, device) for device in target.devices} for target in work.targets
    }

    def frozen(known: ProcessDecision) -> ProcessDecision:
        return replace(known, ballast=ballast[known.pid]) if known.pid in ballast else known

    decision = replace(former, kind="checkpoint", processes=tuple(map(frozen, former.processes)))
    write(work.node.journal, decision)
    work.decision = decision
    for target in work.targets:
        target.process.suspension.ballast_by_device = ballast[target.pid]
    if decision.image and work.targets:  # nothing else says where the bytes are
        quietly("note", lambda: work.targets[0].keeper().note(text_of(decision).decode()))
    work.course.mark("decided")


def release(work: Work) -> None:
    """Lets go of the devices, but for memory that is to stay, and waits until they count it."""
    side_by_side(partial(_release_one, work, target) for target in work.targets)
    for target in work.targets:
        if target.process.state != State.EXITED:
            target.process.way = Way.WHOLE
            target.process.move(State.SUSPENDED)
    work.count.wait()
    work.course.mark("vram_free")


def _release_one(work: Work, target: Target) -> None:
    work.ballasts.settle(target)
    for worker in target.workers():
        let_go = worker.handles.drop_ballast if work.options.resident else worker.release
        quietly("release", partial(let_go, target.hold))
    work.course.reach("committed_one")
