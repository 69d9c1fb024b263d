"""HAND OVER: the programs release their memory, which the worker and the keeper have."""

from functools import partial

from msgspec import Struct

from gcr.engine.departed import depart
from gcr.engine.side_by_side import side_by_side
from gcr.engine.standing import map_back
from gcr.engine.steps.decide import journal, record
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.errors import DriverGone, NoDescriptors, NoRoom
from gcr.job.states import State, Way


class HandOver(Struct, frozen=True):
    """Unmaps the memory of every process; the undo maps it back."""

    work: Work

    def do(self, undo: Transaction) -> None:
        for target in self.work.targets:
            undo.push("hand over", partial(self.map_back, target))
        side_by_side(partial(self._hand_over, target) for target in self.work.targets)
        self.work.course.mark("handed_over")

    def _hand_over(self, target: Target) -> None:
        target.hand_over()
        target.process.move(State.HANDED_OVER)

    def map_back(self, target: Target) -> None:
        """Undoes the hand-over. No undo lets go of the process's memory before this succeeds."""
        if target.process.ended:
            return
        out = self.work.leftovers.out
        out.add(target.pid)
        try:
            map_back(target)
        except DriverGone:
            depart(target)
            out.remove(target.pid)
            return
        except (NoDescriptors, NoRoom) as short:
            if target.copy is None:
                raise
            self._leave_suspended(target, short)
            return
        out.remove(target.pid)
        target.process.take_back("hand_over")

    def _leave_suspended(self, target: Target, short: NoDescriptors | NoRoom) -> None:
        """Records that the process stays suspended: its memory was released, and another has taken the room."""
        work = self.work
        target.process.agent.discard(target.transaction)
        quietly("drop", lambda: target.keeper().drop(target.pid))
        target.spare.close()
        work.leftovers.out.remove(target.pid)
        work.leftovers.suspended[target.pid] = short
        others = work.decision.processes if work.decision else ()
        journal(work, "data_only", (*others, record(work, target)))
        target.process.way = Way.DATA_ONLY
        target.process.settle(State.DATA_SUSPENDED)
