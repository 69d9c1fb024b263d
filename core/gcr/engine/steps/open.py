"""The end of a restore: it is decided, every gate opens, and what was staged is dropped."""

import time
from functools import partial

from msgspec.structs import replace

from gcr.engine.departed import let_go
from gcr.engine.node import decide as write
from gcr.engine.restore import Restore
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.errors import DeadlinePassed, PeerGone
from gcr.job.decisions import ProcessDecision
from gcr.job.moves import Moves, moved
from gcr.job.states import State
from gcr.processes import alive

AGENT_BACK_S = 5.0  # an agent that lost its connection has it again within one
POLL = 0.02


def decide(restore: Restore) -> None:
    """Writes down that the job runs, where it is now: a successor of this daemon opens the gates. Raises RolledBack."""
    moves = {target.pid: target.moves for target in restore.targets}
    processes = tuple(_come_back(known, moves.get(known.pid, {})) for known in restore.decision.processes)
    decided = replace(restore.decision, kind="restored", processes=processes)
    write(restore.node.journal, decided)
    restore.decision = decided
    for target in restore.targets:
        target.process.runs_on(target.moves)
    restore.course.reach("decided")


def open_all(restore: Restore) -> None:
    """Opens every gate; a process that died meanwhile stops no other."""
    restore.close()
    for target in restore.targets:
        quietly("resume", partial(_open, restore, target))
    restore.course.mark("running")
    for target in restore.targets:
        _tidy(restore, target)
    for owner in restore.orphaned:
        let_go(owner)
    restore.node.journal.forget(restore.job)


def _open(restore: Restore, target: Target) -> None:
    """Waits for an agent to connect again after its program closed the connection: the gate opens through it alone."""
    end = time.monotonic() + AGENT_BACK_S
    while not _opened(target):
        if not alive(target.process.identity) or time.monotonic() > end:
            raise PeerGone(f"process {target.pid} is gone, or its agent is")
        time.sleep(POLL)
    target.process.move(State.RUNNING)
    target.process.copied_out = False
    restore.course.reach("opened_one")


def _opened(target: Target) -> bool:
    try:
        target.resume()
    except (PeerGone, DeadlinePassed):
        return False
    return True


def _tidy(restore: Restore, target: Target) -> None:
    for device in target.bytes_by_device:
        worker = restore.node.warm_worker(target.world, device)
        if worker:
            quietly("forget the copy", partial(worker.copies.forget_copy, target.copy_name))
    quietly("drop", lambda: target.process.agent.drop(target.transaction))
    quietly("unstage", lambda: target.keeper().unstage_all(target.pid))


def _come_back(known: ProcessDecision, moves: Moves) -> ProcessDecision:
    size, ballast = moved(known.bytes, moves), moved(known.ballast, moves)
    return replace(known, bytes=size, ballast=ballast, now={}, tried=None)
