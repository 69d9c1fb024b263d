"""Device memory of a process that is on its way here, as the daemon sees it."""

from gcr.peers.waiting import MEMORY_S
from gcr.peers.worker_memory.calls import WorkerCalls
from gcr.protocol.operations import coming as ops
from gcr.protocol.operations.worker import CopyName


class WorkerComing(WorkerCalls):
    """The operations on memory that is coming."""

    def fit(self, copy: CopyName) -> set[int]:
        """Makes memory of a process that is coming that of its copy's table, which `reclaim` has given. Raises NoRoom.

        Returns the ids of handles that keep the bytes that were copied to them before.
        """
        return set(self._call(ops.Fit(copy), timeout=MEMORY_S).ids)

    def inherit(self, copy: CopyName, coming: str) -> int:
        """Makes memory that came under the hold `coming` that of the copy's process. Returns its bytes; 0 without any.

        It is resident beside the copy, so `create` takes it.
        """
        return self._call(ops.Inherit(copy, coming), timeout=MEMORY_S).bytes
