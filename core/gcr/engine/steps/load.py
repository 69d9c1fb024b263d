"""The bytes of an image, to the memory that the workers have made."""

from msgspec import Struct

from gcr.engine.inflow import Imaged, Inflow
from gcr.engine.restore import Restore
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.peers.worker import WorkerPeer


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
        inflow.run(
            [(target, worker) for target in handed_on for worker in target.workers() if not self._has(target, worker)]
        )
        restore.refilled |= inflow.done
        restore.streamed = bool(inflow.done)
        restore.course.mark("loaded")

    def _has(self, target: Target, worker: WorkerPeer) -> bool:
        size = target.bytes_by_device[worker.device]
        return self.restore.resident.get((target.pid, worker.device), 0) == size
