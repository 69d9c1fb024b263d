"""The start of a restore: the processes are on their way."""

from functools import partial

from msgspec import Struct

from gcr.engine.restore import Restore
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.job.states import State


class Begin(Struct, frozen=True):
    """Moves every process to `restoring`; the undo, to where it was suspended."""

    restore: Restore

    def do(self, undo: Transaction) -> None:
        for target in self.restore.targets:
            target.process.move(State.RESTORING)
            undo.push("restoring", partial(self.suspend_again, target))

    def suspend_again(self, target: Target) -> None:
        """Leaves a process alone that recovery must suspend, or that has ended."""
        if not target.process.departed and target.pid not in self.restore.adrift:
            target.process.take_back("restore")
