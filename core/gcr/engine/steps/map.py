"""Memory that came back gets access at its old addresses."""

from functools import partial

from msgspec import Struct

from gcr.engine.restore import Restore
from gcr.engine.side_by_side import side_by_side
from gcr.engine.transaction import Transaction


class Map(Struct, frozen=True):
    """Maps the memory of every process, once its agent knows of moved devices. `BringBack` discards it again."""

    restore: Restore

    def do(self, undo: Transaction) -> None:
        restore = self.restore
        restore.course.left(restore.node.config.prepare_s)
        for target in restore.targets:
            if target.moves:
                target.process.agent.moved(target.transaction, target.moves)
        side_by_side(partial(target.process.agent.map, target.transaction) for target in restore.targets)
        restore.course.mark("mapped")
