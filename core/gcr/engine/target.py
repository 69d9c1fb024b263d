"""The process that a transaction saves or restores, with the parts that act on it."""

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
from gcr.peers.shares import shares_of
from gcr.protocol.operations.worker import CopyName


class Target(Session):
    """A session with its exports, its imports and its control state."""

    def __init__(
        self, process: Process, transaction: int, node: Node, world: World, keeper: Callable[[], Keeper]
    ) -> None:
        super().__init__(process, transaction, node, world, keeper)
        self.exports, self.imports, self.control_state = Exports(self), Imports(self), ProcessControl(self)

    @property
    def copy_name(self) -> CopyName:
        """The name under which workers keep the copy that this transaction makes, or that a restore comes back from."""
        return CopyName(self.hold, self.transaction)

    def read_shares(self) -> None:
        """Asks the process for the memory that it shares with others."""
        self.shares = shares_of(self.process.agent, self.transaction)

    def hand_over(self) -> None:
        """Makes the process release its memory, and that of others which it holds.

        Raises PeerGone where it released another number of handles.
        """
        expected = len(self.books.table.allocations) + len(self.shares.foreign)
        count = self.process.agent.hand_over(self.transaction).count
        if count != expected:
            raise PeerGone(f"process {self.pid} handed over {count} handles of {expected}")

    def forget_copies(self) -> None:
        """Makes the workers give up the copy of this transaction."""
        for worker in self.workers():
            quietly("forget the copy", partial(worker.copies.forget_copy, self.copy_name))

    def forget_memory(self) -> None:
        """Forgets the handles that the process can export again; what it was given back stays kept."""
        again = sorted(self.exports.fresh - self.imports.given_back)
        for worker in self.workers():
            quietly("forget", partial(worker.handles.forget, self.hold, again))
        quietly("drop", lambda: self.keeper().drop(self.pid, again))
        self.spare.close()
