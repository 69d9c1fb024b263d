"""The owner of shared memory that has ended while its job was suspended: other processes still hold its memory."""

from collections.abc import Callable, Mapping

from gcr.engine.duplicates import staged_with
from gcr.engine.node import Node, World
from gcr.engine.target import Target
from gcr.errors import OwnerEnded, PeerGone
from gcr.job.process import Process
from gcr.memory.escrow import Keeper
from gcr.peers.shares import Shares
from gcr.protocol.seqpacket import close_all


class Orphaned(Target):
    """Its memory comes back without it: there is no agent, no control state, and no context on a device.

    shared_as: the name by which others know its memory
    """

    def __init__(
        self,
        process: Process,
        transaction: int,
        node: Node,
        world: World,
        keeper: Callable[[], Keeper],
        shared_as: int,
    ) -> None:
        super().__init__(process, transaction, node, world, keeper)
        self.shares = Shares(process=shared_as)

    @property
    def generation(self) -> None:
        """Returns None: no process is left to tell."""

    @property
    def ballast_by_device(self) -> Mapping[str, int]:
        """Returns nothing: the driver needs no room for it."""
        return {}

    @property
    def is_kept(self) -> bool:
        """Tells whether its bytes can be had: from a keeper, or from the workers where it has not to be moved."""
        if fds := self._staged():
            close_all(fds)
            return True
        return all(self.left(device) == device and self._known_to_worker(device) for device in self.bytes_by_device)

    def staged(self) -> list[int]:
        """Returns descriptors of the sealed tables and segments; the caller closes them. Raises OwnerEnded."""
        if fds := self._staged():
            return fds
        text = f"process {self.pid} has ended while the job was suspended, and no process keeps its bytes"
        raise OwnerEnded(text, hint="docs/limitations.md#memory-that-processes-share")

    def _staged(self) -> list[int]:
        try:
            return staged_with(self.keeper(), self.pid, self.transaction)
        except PeerGone:  # the next keeper is the daemon itself
            return staged_with(self.keeper(), self.pid, self.transaction)

    def _known_to_worker(self, device: str) -> bool:
        worker = self.node.warm_worker(self.world, device)
        return worker is not None and worker.copies.knows(self.copy_name)
