"""JOURNAL: the one decision of a checkpoint. Present, a new daemon rolls forward; absent, it rolls back."""

from gcr.engine.count import refuse_a_part
from gcr.engine.decision import decision_on
from gcr.engine.lending import joint_of, lent
from gcr.engine.node import decide as write
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.work import Work
from gcr.job.decisions import CONTEXT_LATER, DATA_ONLY, ProcessDecision, text_of


def decide(work: Work) -> None:
    """Writes down that the job is suspended. Raises RolledBack."""
    work.course.left(work.node.config.stage_s)
    journal(work, kind(work), records(work), work.course.cut)
    work.course.mark("decided")


def kind(work: Work) -> str:
    if work.options.context_later:
        return CONTEXT_LATER
    return DATA_ONLY if work.options.data_only else "checkpoint"


def records(work: Work) -> tuple[ProcessDecision, ...]:
    """Returns what is decided of each process. Raises PeerGone unless every byte was copied."""
    refuse_a_part({target.pid: target.books.table.bytes for target in work.targets}, work.drained)
    joint = joint_of(work.targets)
    return tuple(lent(record(work, target), target, joint) for target in work.targets)


def journal(work: Work, kind: str, processes: tuple[ProcessDecision, ...], cut: str = "") -> None:
    first = work.targets[0]
    decision = decision_on(work.job, first, kind, processes, work.kept_in, cut)
    write(work.node.journal, decision)
    work.decision = decision
    if decision.image:  # nothing else says where the bytes are
        quietly("note", lambda: first.keeper().note(text_of(decision).decode()))


def record(work: Work, target: Target) -> ProcessDecision:
    """Returns what is decided of one process, which knows from then on what it had."""
    identity = target.process.identity
    ballast = {device: work.ballasts.of(target, device) for device in target.devices}
    target.process.suspension.ballast_by_device = ballast
    target.process.suspension.bytes_by_device = dict(target.bytes_by_device)
    target.process.suspension.transaction = target.transaction
    size, copied_out = dict(target.bytes_by_device), target.process.copied_out
    return ProcessDecision(identity.pid, identity.start_time, size, ballast, copied_out, stack=identity.stack)
