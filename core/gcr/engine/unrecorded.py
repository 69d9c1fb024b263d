"""Jobs with their bytes in an image alone, and a decision record that is damaged or gone.

Such a job cannot be rolled back, since its memory is in no escrow, and it is not lost while its image is whole. The
keeper of its escrow has a copy of the record. Where it has none, the journal may have had
a record that does not read back: then the job is suspended in an image that only the user can name. A job that a
container's runtime has restored is suspended in such an image, too: the image has the record (gcr.job.contained).
"""

import logging
from collections.abc import Sequence

from gcr.engine.copyout import StagedCopy
from gcr.engine.decision import decision_on
from gcr.engine.node import Node
from gcr.engine.target import Target
from gcr.errors import GcrError
from gcr.job.decisions import DecisionRecord, KeptImage, ProcessDecision, record_of
from gcr.job.placement import Placement
from gcr.protocol.wire import AgentFlag

log = logging.getLogger("gcr.engine")


def decision_of(job: str, targets: Sequence[Target], node: Node) -> DecisionRecord | None:
    """Returns the decision on a job without a record; None where its memory is there, or no trace of one is left.

    Its processes get the facts of that decision.
    """
    if not any(_is_without_bytes(target) for target in targets):
        return None
    decision = _decided(job, targets, node)
    for known in decision.processes if decision else ():
        for target in targets:
            if target.pid == known.pid:
                target.process.suspension.transaction = target.transaction
                target.process.suspension.bytes_by_device = dict(known.bytes)
                target.process.suspension.ballast_by_device = dict(known.ballast)
                target.process.suspension.placement = Placement(known.now, known.tried)
    return decision


def _decided(job: str, targets: Sequence[Target], node: Node) -> DecisionRecord | None:
    if noted := _noted(targets[0]):
        log.warning("job %s: its decision record is gone; its supervisor has a copy", job)
        return noted
    if intended := _intended(job, targets[0], node):
        log.warning("job %s: its decision record was not written; its image is whole", job)
        return intended
    if returned := [target for target in targets if _is_returned(target)]:
        log.info("job %s: it comes from a checkpoint of its container; its image must be named", job)
        return _in_some_image(job, returned)
    if any(path.name.startswith(f"{job}.damaged-") for path in node.journal.damaged()):
        log.warning("job %s: its decision record is damaged; it is suspended in an image that must be named", job)
        return _in_some_image(job, targets)
    return None


def _intended(job: str, target: Target, node: Node) -> DecisionRecord | None:
    """Returns the intended decision on this very suspension, if its image is there. Raises StoreUnusable, PeerGone …"""
    found = node.journal.intended(job)
    return found if found and found.transaction == target.transaction and node.has_image(found) else None


def _is_without_bytes(target: Target) -> bool:
    """Tells whether the staged tables name no memory, and nothing of the process is in escrow."""
    if target.imports.kept():
        return False
    if _is_returned(target):
        return True
    if not target.process.look().status.flags & AgentFlag.STAGED:
        return False
    staged = StagedCopy.of(target.staged())
    try:
        return staged.elsewhere
    finally:
        staged.close()


def _is_returned(target: Target) -> bool:
    """Tells whether the process was away while it was suspended. An image has its bytes, and it has none staged."""
    return bool(target.process.look().status.flags & AgentFlag.RETURNED)


def _noted(target: Target) -> DecisionRecord | None:
    """Returns the keeper's copy of the decision, if it is of this very suspension."""
    try:
        text = target.keeper().noted()
    except GcrError as error:  # it is gone, or of an earlier version
        log.info("job %s: no copy of its decision record: %s", target.process.job, error)
        return None
    found = record_of(text.encode()) if text else None
    return found if found and found.transaction == target.transaction else None


def _in_some_image(job: str, targets: Sequence[Target]) -> DecisionRecord:
    frozen = any(target.process.look().status.flags & AgentFlag.FROZEN for target in targets)
    kind = "checkpoint" if frozen else "data_only"
    return decision_on(job, targets[0], kind, [*map(_known, targets)], KeptImage("", ""))


def _known(target: Target) -> ProcessDecision:
    identity = target.process.identity
    return ProcessDecision(identity.pid, identity.start_time, dict(target.books.suspended), {}, stack=identity.stack)
