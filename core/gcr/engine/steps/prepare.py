"""PREPARE: handles are exported and room is reserved, while the program runs."""

from collections.abc import Callable
from functools import partial

from msgspec import Struct, field

from gcr.engine.admit import refuse_nothing_to_move
from gcr.engine.lending import join_ahead
from gcr.engine.side_by_side import side_by_side
from gcr.engine.streaming import Stream
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.errors import NoRoom
from gcr.job.placement import Placement
from gcr.job.states import State, Way


class Prepare(Struct, frozen=True):
    """Exports every handle to the worker and the keeper. `running`: pids of programs that run on, with all undone.

    Refuses memory that is shared with a process that takes no part, while no gate is closed.
    """

    work: Work
    running: set[int] = field(default_factory=set)

    def do(self, undo: Transaction) -> None:
        work = self.work
        work.course.tell("preparing")
        work.course.left(work.node.config.prepare_s)
        for target in work.targets:
            undo.push("export", partial(self.forget_exports, target))
            undo.push("prepare", partial(self.run_on, target))
            target.process.way = work.options.way
            target.process.suspension.placement = Placement()  # it runs: this checkpoint counts from where it is
        side_by_side(target.exports.choose_strategy for target in work.targets)
        side_by_side(partial(self._export, target) for target in work.targets)
        join_ahead(work.targets, work.node)
        if work.options.data_only:
            refuse_nothing_to_move(work.targets)
        for target in work.targets:
            target.process.move(State.PREPARED)
        work.course.mark("exported")

    def _export(self, target: Target) -> None:
        target.read_shares()  # before: the owner of what is listed has it among its exports then
        target.exports.export_new()

    def run_on(self, target: Target) -> None:
        """Undoes everything up to QUIESCE: the gate opens."""
        if target.pid in self.running:
            return
        if not target.process.ended and target not in self.work.leftovers:
            target.resume()
            target.process.take_back("quiesce")
            target.process.take_back("prepare")

    def forget_exports(self, target: Target) -> None:
        left = self.work.leftovers
        if target.pid in self.running or target.pid in left.suspended:  # a suspended one has nothing but its copy
            return
        if target.pid in left.out:
            target.exports.entrust_spares()  # to its keeper, for the restore
            return
        target.forget_memory()
        if self.work.options.way is not Way.RUNNING_ON:  # such a copy stays until it is handed on
            target.forget_copies()


class Reserve(Struct, frozen=True):
    """Reserves room on the host, before anything stops. Raises NoRoom.

    otherwise: returns the way without that room, or raises NoRoom · may_stop: raises what speaks against stopping.
    """

    work: Work
    otherwise: Callable[[NoRoom], Stream]
    may_stop: Callable[[], object]

    def do(self, undo: Transaction) -> None:
        """Its room goes with the exports."""
        work = self.work
        try:
            take_room(work)
        except NoRoom as short:
            work.stream = self.otherwise(short)
        work.course.mark("reserved")
        for target in work.targets:
            work.count.look_before(target)
        if not work.options.data_only:
            work.ballasts.room.look()
        self.may_stop()
        if work.stream:
            work.stream.outlet.prepare(work.targets)
        work.course.mark("prepared")


def take_room(work: Work) -> None:
    """Reserves room on the host for every byte. Raises NoRoom."""
    for target in work.targets:
        for device, size in target.bytes_by_device.items():
            target.worker(device).copies.reserve(target.copy_name, target.owner, size)
