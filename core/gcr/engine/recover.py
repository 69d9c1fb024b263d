"""Recovery after a daemon died: a job goes where its journal says. Present = roll forward, absent = roll back.

The agents are the truth about their processes, the driver about control state, the journal about what was decided.
Every step here may be cut short and begun again.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from gcr.control import ControlPhase
from gcr.engine.ballast import way_back
from gcr.engine.departed import depart
from gcr.engine.node import Node, decide, give_up
from gcr.engine.rolling_back import roll_back, suspended_as_they_are
from gcr.engine.side_by_side import side_by_side
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.unrecorded import decision_of
from gcr.engine.unreturned import lose
from gcr.errors import DriverGone, Lost
from gcr.job.decisions import DecisionRecord
from gcr.job.states import State, Way
from gcr.protocol.wire import AgentFlag, AgentPhase

log = logging.getLogger("gcr.engine")


def recover(
    job: str, targets: Sequence[Target], decision: DecisionRecord | None, node: Node, beside: Sequence[Target] = ()
) -> str:
    """Recovers a job. Returns "kept running", "rolled back", "suspended" or "restored". Raises Lost.

    beside: its processes that run already.
    """
    if (decision is None or decision.is_without_image) and (found := decision_of(job, targets, node)):
        decision = _with_those_of(decision, found)
        decide(node.journal, decision)
    if decision is None:
        moved = [target for target in targets if _open(target)]
        roll_back(moved, beside, node)
        if left := [target for target in moved if target.process.state == State.DATA_SUSPENDED]:
            decide(node.journal, suspended_as_they_are(left))
            return "suspended"
        quietly("give up", partial(give_up, node.journal, job))
        return "rolled back" if moved else "kept running"
    if decision.kind == "restored":
        side_by_side(partial(_or_depart, _roll_on, target, node) for target in targets)
        node.journal.forget(job)
        return "restored"
    if not any(_open(target) for target in targets):
        node.journal.forget(job)  # every gate is open: the restore was complete but for this
        return "kept running"
    decided = {known.pid for known in decision.processes}
    suspend = partial(_suspend_or_lose, decision=decision)
    side_by_side(partial(_or_depart, suspend, target, node) for target in targets if target.pid in decided)
    return "suspended"


def _with_those_of(former: DecisionRecord | None, found: DecisionRecord) -> DecisionRecord:
    """Returns what was found, also about the processes that came earlier."""
    now = {each.pid for each in found.processes}
    earlier = tuple(each for each in former.processes if each.pid not in now) if former else ()
    return replace(found, processes=(*earlier, *found.processes))


def _or_depart(step: Callable[[Target, Node], object], target: Target, node: Node) -> None:
    try:
        step(target, node)
    except DriverGone:
        depart(target)


def _open(target: Target) -> bool:
    status = target.process.look().status
    return status.phase != AgentPhase.RUNNING or bool(status.flags & (AgentFlag.STAGED | AgentFlag.FROZEN))


def _roll_on(target: Target, node: Node) -> None:
    """Finishes a restore that was decided: everything is mapped, only the gate may still be closed."""
    if _open(target):
        with node.turns.taking(target.devices, node.config.control_s):
            target.control_state.thaw(node.config.control_s)
        target.resume()
        quietly("look", target.process.look)  # it says on which devices it is once its gate is open
        quietly("drop", partial(target.process.agent.drop, target.transaction))
    target.process.settle(State.RUNNING)
    target.process.copied_out = False
    quietly("unstage", lambda: target.keeper().unstage_all(target.pid))


def _suspend_or_lose(target: Target, node: Node, decision: DecisionRecord) -> None:
    """Does as `_suspend`; a process that its driver will not give back is lost, and the others can come back."""
    try:
        _suspend(target, node, decision)
    except Lost:
        lose(target)


def _suspend(target: Target, node: Node, decision: DecisionRecord) -> None:
    """Finishes a checkpoint that was decided: a restore that had begun is taken back, all memory released."""
    status = target.process.look().status
    data_only = decision.data_only
    if data_only and status.flags & AgentFlag.FROZEN:  # its control state was about to leave as well
        with way_back(target):
            target.control_state.thaw(node.config.control_s)
        status = target.process.look().status
    if not status.flags & AgentFlag.FROZEN:
        target.process.agent.discard(target.transaction)
    if not data_only:
        target.control_state.freeze_again(node.config.control_s)
    quietly("drop", lambda: target.keeper().drop(target.pid))
    target.process.way = Way.DATA_ONLY if data_only else Way.WHOLE
    target.process.settle(State.DATA_SUSPENDED if data_only else State.SUSPENDED)


def driver_phase(phase: ControlPhase) -> State:
    """Returns the state of a process that only the driver suspended."""
    if phase == ControlPhase.CHECKPOINTED:
        return State.SUSPENDED
    return State.LOST if phase == ControlPhase.FAILED else State.RUNNING
