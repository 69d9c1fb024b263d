"""The bytes of an image, to the memory that the workers have made."""

from collections.abc import Sequence

from msgspec import Struct

from gcr.engine.inflow import Imaged, Inflow, Inlet
from gcr.engine.progress import Copy
from gcr.engine.restore import Restore
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.peers.worker import WorkerPeer
from gcr.protocol.operations.worker import Moved


class Load(Struct, frozen=True):
    """Brings the data to the device, and compares it, before anything of a process is touched.

    Memory that was filled with the image ahead has all of it.
    It goes with the memory. Raises what the image's helper raises.
    """

    restore: Restore
    image: Imaged

    def do(self, undo: Transaction) -> None:
        restore = self.restore
        inflow = Inflow(self.image, restore.course, restore.node.config.slot_bytes, restore.node.config.drain_s)
        handed_on = [target for target in restore.owners if target.copy is None]  # the workers make their memory
        inlets = [(target, worker) for target in handed_on for worker in target.workers()]
        inflow.run([inlet for inlet in inlets if not self._has(*inlet)])
        came = self._came([inlet for inlet in inlets if self._has(*inlet)])
        restore.refilled |= inflow.done | came
        restore.streamed = bool(inflow.done or came)
        restore.course.mark("loaded")

    def _came(self, inlets: Sequence[Inlet]) -> dict[Copy, Moved]:
        """Returns the copies that were made ahead, as a part of this restore: their memory counts as no resident."""
        found = dict[Copy, Moved]()
        for target, worker in inlets:
            if moved := self.image.came(target.pid, target.left(worker.device)):
                found[target.pid, worker.device] = moved
                self.restore.resident.pop((target.pid, worker.device))
        return found

    def _has(self, target: Target, worker: WorkerPeer) -> bool:
        size = target.bytes_by_device[worker.device]
        return self.restore.resident.get((target.pid, worker.device), 0) == size
