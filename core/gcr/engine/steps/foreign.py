"""Memory that suspended processes hold of each other: joined before anything is touched, given after that of its owner.

Its bytes are its owner's. The memory of a process that has ended while the job was suspended went with that process, so
those that hold some of it do not come back: to keep it for them is a later stage.
"""

from functools import partial

from msgspec import Struct

from gcr.engine.lending import give_foreign, join_to_return
from gcr.engine.restore import Restore
from gcr.engine.side_by_side import side_by_side
from gcr.engine.transaction import Transaction


class Join(Struct, frozen=True):
    """Finds the owner of all memory that a process holds of another. Raises OwnerEnded, UnsupportedState."""

    restore: Restore

    def do(self, undo: Transaction) -> None:
        restore = self.restore
        side_by_side(target.read_shares for target in restore.targets)
        back = {target.pid for target in restore.targets}
        ended = sorted({known.pid for known in restore.decision.processes} - back)
        join_to_return(restore.targets, restore.node, ended)


class GiveForeign(Struct, frozen=True):
    """Gives each process the memory of others, once all owners have theirs. `BringBack` discards it again."""

    restore: Restore

    def do(self, undo: Transaction) -> None:
        restore = self.restore
        owners = {target.pid: target for target in restore.targets}
        side_by_side(partial(give_foreign, target, owners) for target in restore.targets)
