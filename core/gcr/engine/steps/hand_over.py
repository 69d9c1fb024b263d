"""HAND OVER: the programs release their memory, which the worker and the keeper have."""

from functools import partial

from msgspec import Struct, field

from gcr.engine.departed import depart
from gcr.engine.lending import give_foreign
from gcr.engine.side_by_side import side_by_side
from gcr.engine.standing import insist
from gcr.engine.steps.decide import journal, record
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.errors import DriverGone, NoDescriptors, NoRoom
from gcr.job.states import State, Way


class HandOver(Struct, frozen=True):
    """Unmaps the memory of every process; the undo maps it back.

    Each process takes its own memory back, then each what it holds of others, then all get access. No undo lets go of
    a process's memory before this succeeds. `back`: pids with all that the undo has given them so far; `gone`: of
    processes without a driver, which depart once no other needs their memory.
    """

    work: Work
    back: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)

    def do(self, undo: Transaction) -> None:
        targets = self.work.targets
        for way_back in (self.map, self.take_foreign, self.take_own):  # the last is undone first
            for target in targets:
                undo.push("hand over", partial(way_back, target))
        side_by_side(partial(self._hand_over, target) for target in targets)
        self.work.course.mark("handed_over")

    def _hand_over(self, target: Target) -> None:
        target.hand_over()
        target.process.move(State.HANDED_OVER)

    def take_own(self, target: Target) -> None:
        """Gives a living process its own memory."""
        if target.process.ended:
            return
        self.work.leftovers.out.add(target.pid)
        try:
            insist(target, target.imports.take_own)
        except DriverGone:
            self.gone.add(target.pid)
        except (NoDescriptors, NoRoom) as short:
            if target.copy is None:
                raise
            self._leave_suspended(target, short)
        else:
            self.back.add(target.pid)

    def take_foreign(self, target: Target) -> None:
        """Gives a process the memory of others; it stays where it is if that fails."""
        owners = {each.pid: each for each in self.work.targets}
        if target.pid in self.back and target.borrowed:
            self.back.remove(target.pid)
            try:
                insist(target, partial(give_foreign, target, owners))
            except DriverGone:
                self.gone.add(target.pid)
            else:
                self.back.add(target.pid)

    def map(self, target: Target) -> None:
        """Gives a process access to all of its memory."""
        if target.pid in self.back:
            try:
                insist(target, target.imports.map)
            except DriverGone:
                self.gone.add(target.pid)
        if target.pid in self.gone:
            depart(target)
            self.work.leftovers.out.remove(target.pid)
        elif target.pid in self.back:
            self.work.leftovers.out.remove(target.pid)
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
