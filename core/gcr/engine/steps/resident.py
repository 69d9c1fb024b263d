"""A checkpoint after which the memory stays on its devices, beside a whole copy on the host (worker/residence.py).

The copy is decided like any other. So the journal, the process and its keepers say that the bytes are on the host,
and every death leaves the job to come back from there.
"""

import logging

from msgspec import Struct

from gcr.control import ControlMeans
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.errors import GcrError, UnsupportedState
from gcr.peers.worker import WorkerPeer

log = logging.getLogger("gcr.engine")


class RefuseToStay(Struct, frozen=True):
    """Refuses a process that copies by itself, or that shares memory: a worker cannot keep that memory. Undoes nothing.

    Once before the stop, and again behind the closed gates.
    """

    work: Work

    def do(self, undo: Transaction) -> None:
        """Raises UnsupportedState."""
        for target in self.work.targets if self.work.options.resident else ():
            if target.process.copied_out:
                text = f"process {target.pid} copies by itself, so no worker can hold its memory on the device"
                raise UnsupportedState(text, hint="checkpoint it without --resident")
            if target.shares.any:
                text = f"process {target.pid} shares device memory with another, and such memory cannot stay"
                raise UnsupportedState(text, hint="checkpoint it without --resident")


def refuse_means_that_leave(means: ControlMeans) -> None:
    """Raises UnsupportedState where control state does not leave by the driver's own calls.

    Another runtime wants its device free of other processes, or keeps released memory.
    """
    if means is not ControlMeans.DRIVER:
        text = "memory stays on a device only where the driver saves control state from outside the process"
        raise UnsupportedState(text, hint="checkpoint it without --resident")


def stays(work: Work, target: Target, worker: WorkerPeer) -> bool:
    """Tells whether the memory of a process stays on a device, after the decision."""
    if not work.options.resident:
        return False
    try:
        work.count.resident[target.pid, worker.device] = work.node.stay(worker, target.copy_name)
    except GcrError as error:  # the job is suspended with a whole copy, whatever becomes of this memory
        log.warning("job %s: process %d: its memory does not stay: %s", work.job, target.pid, error)
        return False
    return True
