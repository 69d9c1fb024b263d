"""The bytes that an image's parent has: the image takes the parent's names of them."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from gcr.engine.admit import refuse_nothing_to_move
from gcr.engine.live import refuse_its_own_copy
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.protocol.seqpacket import close_all

Baselines = Callable[[Sequence[Target]], Mapping[int, int]]
"""Descriptors of what the parent has, by pid; the caller's."""


class Compare(Struct, frozen=True):
    """Gives the workers the parent's hashes. They go with the exports.

    whole: the copies get the parent's bytes as well, since the processes may have to come back from them
    """

    work: Work
    baselines: Baselines
    whole: bool = False

    def do(self, undo: Transaction) -> None:
        """Raises UnsupportedState where nothing can be copied, or a program itself would have to copy."""
        targets = self.work.targets
        if not self.whole:  # a job that stops may have none
            refuse_nothing_to_move(targets)
        refuse_its_own_copy(targets)
        baselines = self.baselines(targets)
        try:
            for target in targets:
                for worker in target.workers() if target.pid in baselines else ():
                    worker.copies.compare_with(target.copy_name, target.owner, baselines[target.pid], self.whole)
        finally:
            close_all([*baselines.values()])
