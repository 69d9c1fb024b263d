"""Memory that suspended processes hold of each other: joined before anything is touched, given after that of its owner.

Its bytes are its owner's. Memory of an owner that has ended while the job was suspended comes back as well: on a device
it lives until its last holder lets go.
"""

from functools import partial

from msgspec import Struct

from gcr.engine.lending import give_foreign, join_to_return
from gcr.engine.restore import Restore
from gcr.engine.side_by_side import side_by_side
from gcr.engine.transaction import Transaction


class Join(Struct, frozen=True):
    """Finds the owner of all memory that a process holds of another, also of those that have ended meanwhile.

    Raises OwnerEnded where nothing is kept of one, UnsupportedState.
    """

    restore: Restore

    def do(self, undo: Transaction) -> None:
        restore = self.restore
        side_by_side(target.read_shares for target in restore.targets)
        kept = [each for each in restore.orphaned if restore.image or each.is_kept]
        back = {each.pid for each in (*restore.targets, *kept)}
        ended = sorted({known.pid for known in restore.decision.processes} - back)
        joint = join_to_return(restore.targets, kept, restore.node, ended)
        restore.orphaned = [each for each in kept if joint.holders(each.pid)]


class GiveForeign(Struct, frozen=True):
    """Gives each process the memory of others, once all owners have theirs. `BringBack` discards it again."""

    restore: Restore

    def do(self, undo: Transaction) -> None:
        restore = self.restore
        owners = {target.pid: target for target in restore.owners}
        side_by_side(partial(give_foreign, target, owners) for target in restore.targets)
