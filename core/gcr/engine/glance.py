"""A checkpoint that leaves the program running: its copy is wanted, and nothing else of it stays.

    PREPARE · the parent's hashes · (live copy) · QUIESCE · drain · seal · gates open · the copy is handed on · …

No memory of the program is unmapped, and its control state is not touched. What the image before has as well is not
copied, so nobody but the image's writer can use the copy (gcr.partial).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from gcr.engine.admit import refuse_nothing_to_move
from gcr.engine.checkpoint import Checkpoint, refuse_a_part
from gcr.engine.live import copy_live, refuse_its_own_copy, sizes_of
from gcr.engine.progress import Meter
from gcr.engine.side_by_side import side_by_side
from gcr.engine.target import Target
from gcr.seqpacket import close_all
from gcr.states import State
from gcr.transaction import Transaction


class Glance(Checkpoint):
    """Made with `data_only`: as one that leaves the control state alone."""

    def look(
        self,
        baselines: Callable[[Sequence[Target]], Mapping[int, int]],
        copied: Callable[[Target, list[int]], object],
    ) -> None:
        """Copies what the parent image has not, and leaves the program running.

        `baselines` gives descriptors of what the parent has, by pid; `copied` takes the sealed copy of each process. It
        stands still from QUIESCE until what has changed since a live copy, or the parent, is in the arena. No memory of
        it is unmapped.
        """
        with Transaction(self.job) as undo:  # all of it is taken back in any case: the copy alone is wanted
            self._prepare(undo)
            refuse_nothing_to_move(self.targets)
            refuse_its_own_copy(self.targets)
            self._compare_with(baselines(self.targets))
            if self.live:
                self.copied_live = copy_live(self.targets, self.course, self.node.config.drain_s)
            self._quiesce(undo)
            for target in self.targets:
                target.export_new()
                target.close_books()
            refuse_its_own_copy(self.targets)
            self._drain_standing()
            sealed: list[tuple[Target, list[int]]] = []
            try:
                for target in self.targets:
                    if target.bytes_by_device:
                        sealed.append((target, self._seal(target, partial=True)))
                side_by_side(target.resume for target in self.targets)
                for target in self.targets:
                    target.process.move(State.RUNNING)
                self.course.mark("running")
                while sealed:
                    copied(*sealed.pop())
            finally:
                close_all([fd for _, fds in sealed for fd in fds])

    def _compare_with(self, baselines: Mapping[int, int]) -> None:
        try:
            for target in self.targets:
                for worker in target.workers() if target.pid in baselines else ():
                    worker.compare_with(target.hold, target.owner, baselines[target.pid])
        finally:
            close_all([*baselines.values()])

    def _drain_standing(self) -> None:
        self.course.left(self.node.config.drain_s)
        meter = Meter(self.course, "draining", sizes_of(self.targets))
        meter.start()
        limit = self.course.left(self.node.config.drain_s)
        pairs = [(target, worker) for target in self.targets for worker in target.workers()]
        side_by_side(partial(self._drain_device, target, worker, limit, meter) for target, worker in pairs)
        refuse_a_part({target.pid: target.table.bytes for target in self.targets}, self.drained)
        self.course.mark("drained")
