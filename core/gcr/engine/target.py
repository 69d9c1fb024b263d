"""One process of a job inside one transaction: its memory on the way out and back, and its control state."""

from collections.abc import Callable
from functools import partial

from gcr.engine.exports import Exports
from gcr.engine.imports import Imports
from gcr.engine.node import Node, World
from gcr.engine.process_control import ProcessControl
from gcr.engine.session import Session
from gcr.engine.tidying import quietly
from gcr.errors import PeerGone
from gcr.job.process import Process
from gcr.memory.escrow import Keeper


class Target(Session):
    def __init__(
        self, process: Process, transaction: int, node: Node, world: World, keeper: Callable[[], Keeper]
    ) -> None:
        super().__init__(process, transaction, node, world, keeper)
        self.exports, self.imports, self.control_state = Exports(self), Imports(self), ProcessControl(self)

    def hand_over(self) -> None:
        """Raises PeerGone when the process released something else than the books say."""
        count, expected = self.process.agent.hand_over(self.transaction).count, len(self.books.table.allocations)
        if count != expected:
            raise PeerGone(f"process {self.pid} handed over {count} handles of {expected}")

    def forget_exports(self) -> None:
        """Undo of the exports, and of whatever was copied of them."""
        self.forget_memory()
        for worker in self.workers():
            quietly("forget the copy", partial(worker.forget_copy, self.hold))

    def forget_memory(self) -> None:
        """What the process can export again is nobody's; what was given back stays kept."""
        again = sorted(self.exports.fresh - self.imports.given_back)
        for worker in self.workers():
            quietly("forget", partial(worker.forget, self.hold, again))
        quietly("drop", lambda: self.keeper().drop(self.pid, again))
        self.spare.close()
