"""The books of a process behind its closed gate."""

from functools import partial

from msgspec import Struct

from gcr.engine.lending import join_to_leave, spare_lent
from gcr.engine.live import refuse_its_own_copy, sizes_of
from gcr.engine.progress import Meter
from gcr.engine.rehome import close_books
from gcr.engine.side_by_side import side_by_side
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work


class CloseBooks(Struct, frozen=True):
    """Exports what was made up to the stop; from here on nothing changes any more. Nothing is to be undone.

    Joins the books of all processes. Raises UnsupportedState where one shares memory with a process that takes no part.
    """

    work: Work
    meter: Meter  # told how many bytes there are

    def do(self, undo: Transaction) -> None:
        work = self.work
        work.course.left(work.node.config.prepare_s)
        side_by_side(partial(self._close, target) for target in work.targets)
        join_to_leave(work.targets, work.node)
        spare_lent(work.targets)
        self.meter.sizes = sizes_of(work.targets)

    def _close(self, target: Target) -> None:
        target.exports.export_new()
        close_books(target)
        copies = target.process.copied_out  # else a context that stays is there with --data-only alone
        stays = self.work.options.data_only or (copies and target.keeps_context)
        self.work.count.look_before(target, again=stays)  # what the context has is known only once the program stands


class CloseBooksOfRunning(Struct, frozen=True):
    """The same of programs that run on: no device is asked, since nothing of them is to be free."""

    work: Work

    def do(self, undo: Transaction) -> None:
        for target in self.work.targets:
            target.exports.export_new()
            close_books(target)
        join_to_leave(self.work.targets, self.work.node)
        refuse_its_own_copy(self.work.targets)
