"""A checkpoint that was never decided, taken back after its daemon died: processes run on with memory from escrow.

Processes that share memory go together: each takes its own before any takes memory of another.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct, field

from gcr.engine.ballast import way_back
from gcr.engine.copyout import StagedCopy
from gcr.engine.decision import decision_on
from gcr.engine.departed import depart
from gcr.engine.joint import owners
from gcr.engine.lending import give_foreign, joint_of, lent, party_of
from gcr.engine.node import Course, Node
from gcr.engine.restore import Restore
from gcr.engine.routes.restore import plan_of
from gcr.engine.side_by_side import side_by_side
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.errors import DriverGone, Lost, NoDescriptors, NoRoom, PeerGone
from gcr.job.decisions import DecisionRecord, ProcessDecision
from gcr.job.states import State, Way
from gcr.protocol.agentwire import StatusRecord
from gcr.protocol.wire import AgentFlag, AgentPhase

log = logging.getLogger("gcr.engine")


def roll_back(targets: Sequence[Target], beside: Sequence[Target], node: Node) -> None:
    """Brings every process back to where it runs, or leaves it suspended where another took its room. Raises Lost.

    beside: processes of the job that run already; a target may hold memory of theirs.
    """
    side_by_side(target.read_shares for target in targets)
    everyone = [*targets, *_lenders_beside(targets, beside)]
    joint = owners([party_of(each) for each in everyone])
    for target in targets:
        target.borrowed = joint.of(target.pid)
    by_pid = {each.pid: each for each in everyone}
    groups = joint.groups([target.pid for target in targets])
    side_by_side(Group([by_pid[pid] for pid in pids], by_pid, node).roll_back for pids in groups)


def _lenders_beside(targets: Sequence[Target], beside: Sequence[Target]) -> Sequence[Target]:
    """Asks processes that run, if targets hold memory of a process that is not among them."""
    here = {target.shares.process for target in targets}
    if all(each.owner in here for target in targets for each in target.shares.foreign):
        return ()
    for other in beside:
        quietly("shared memory", other.read_shares)
    return beside


class Group(Struct):
    """Processes that share memory with each other alone.

    gone: those without a driver by now · restored: those that came back from their staged copies, or stay suspended.
    """

    targets: Sequence[Target]
    lenders: Mapping[int, Target]
    node: Node
    gone: list[Target] = field(default_factory=list)
    restored: list[Target] = field(default_factory=list)
    found: dict[int, StatusRecord] = field(default_factory=dict)

    def roll_back(self) -> None:
        try:
            self._each(self._let_go)
            if any(self._lacks_memory(target) for target in self._left()):
                self._restore_from_arena()
            self._each(lambda target: target.imports.take_own())
            self._each(self._take_foreign)
            self._each(self._run_on)
        finally:
            for target in self.gone:  # only now: others may have needed its memory
                depart(target)

    def _left(self) -> list[Target]:
        """Returns those that are neither gone nor restored."""
        return [target for target in self.targets if target not in self.gone and target not in self.restored]

    def _each(self, step: Callable[[Target], object]) -> None:
        side_by_side(partial(self._or_gone, step, target) for target in self._left())

    def _or_gone(self, step: Callable[[Target], object], target: Target) -> None:
        try:
            step(target)
        except DriverGone:
            self.gone.append(target)

    def _let_go(self, target: Target) -> None:
        """Gives the control state back, and discards memory of an earlier attempt."""
        status = target.process.look().status
        with way_back(target):
            target.control_state.thaw(self.node.config.control_s, undo=True)
        if status.phase == AgentPhase.HANDED_OVER:
            target.process.agent.discard(target.transaction)
            target.imports.given_back.clear()
        self.found[target.pid] = status

    def _lacks_memory(self, target: Target) -> bool:
        status = self.found[target.pid]
        if status.phase != AgentPhase.HANDED_OVER:
            return False
        kept = len(target.imports.kept())
        return kept < status.handles if status.flags & AgentFlag.STAGED else bool(status.handles and not kept)

    def _take_foreign(self, target: Target) -> None:
        if len(target.borrowed) < len(target.shares.foreign) and target.phase() == AgentPhase.HANDED_OVER:
            raise PeerGone(f"process {target.pid} holds memory of a process that has ended: it stands still")
        give_foreign(target, self.lenders)

    def _run_on(self, target: Target) -> None:
        target.imports.map()
        target.resume()
        if self.found[target.pid].flags & AgentFlag.STAGED:
            target.process.agent.drop(target.transaction)
        target.process.settle(State.RUNNING)
        _forget_copy(target, self.node)
        quietly("unstage", lambda: target.keeper().unstage_all(target.pid))

    def _restore_from_arena(self) -> None:
        """Restores processes that lost their keeper as well: their staged copies are complete, as good as the escrow.

        They need no other way back then.
        """
        away = [each for each in self._left() if self.found[each.pid].phase == AgentPhase.HANDED_OVER]
        for target in away:
            self._refuse_without_bytes(target)
        for target in away:
            quietly("drop", partial(target.keeper().drop, target.pid))
        self.restored += away
        try:
            restore_together(away, self.node)
        except (NoDescriptors, NoRoom) as short:  # another program took the room: suspended, and restorable
            pids = ", ".join(str(target.pid) for target in away)
            log.warning("job %s: process %s is left suspended: %s", away[0].process.job, pids, short)

    def _refuse_without_bytes(self, target: Target) -> None:
        """Raises Lost for a process with nothing staged, or a staged copy without bytes, which are in an image."""
        status = self.found[target.pid]
        if not status.flags & AgentFlag.STAGED:
            if status.handles:
                raise _lost(target)
            return
        staged = StagedCopy.of(target.staged())
        try:
            if staged.elsewhere:
                raise _lost(target, ", its image not decided")
        finally:
            staged.close()


def _lost(target: Target, more: str = "") -> Lost:
    """Returns the error about a process that cannot come back, and records that it is lost."""
    target.process.settle(State.LOST)
    return Lost(f"process {target.pid}: its memory was in escrow with a supervisor that died too{more}", state="lost")


def _forget_copy(target: Target, node: Node) -> None:
    """Gives up the copy of a checkpoint that was taken back, where the worker that made it still lives."""
    for device in target.bytes_by_device:
        if worker := node.warm_worker(target.world, device):
            quietly("forget the copy", partial(worker.copies.forget_copy, target.copy_name))


def restore_together(targets: Sequence[Target], node: Node) -> None:
    """Brings processes back from their staged arena, control state already thawed."""
    for target in targets:
        process = target.process
        process.way = Way.DATA_ONLY
        process.settle(State.DATA_SUSPENDED)
        process.suspension.bytes_by_device = dict(target.bytes_by_device)
        process.suspension.transaction = target.transaction
    job, decision = targets[0].process.job, suspended_as_they_are(targets)
    course = Course("recover", targets[0].transaction, node.config.drain_s)
    plan_of(Restore(job, targets, decision, node, course)).run()


def suspended_as_they_are(targets: Sequence[Target]) -> DecisionRecord:
    """Returns a decision as after `--data-only`: the bytes are staged, the control state is back."""
    first, joint = targets[0], joint_of(targets)
    known = [lent(_known(target), target, joint) for target in targets]
    return decision_on(first.process.job, first, "data_only", known)


def _known(target: Target) -> ProcessDecision:
    identity = target.process.identity
    copied_out = target.process.copied_out
    bytes_by_device = dict(target.bytes_by_device)
    return ProcessDecision(identity.pid, identity.start_time, bytes_by_device, {}, copied_out, stack=identity.stack)
