"""Device memory that a worker holds of processes, as the daemon sees it."""

from collections.abc import Sequence

from gcr.drain import HandleSpec
from gcr.peers.worker_memory.calls import WorkerCalls, rows
from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.worker import CopyName


class WorkerHandles(WorkerCalls):
    """The operations on handles that the worker holds."""

    def held(self, hold: str) -> set[int]:
        """Returns the ids of the device memory that the worker holds of a process."""
        return set(self._call(ops.Held(hold)).ids)

    def adopt(self, hold: str, specs: Sequence[HandleSpec], fds: Sequence[int]) -> None:
        """Gives the worker handles by their descriptors, which stay the caller's."""
        self._call(ops.Adopt(hold, rows(specs)), fds)

    def forget(self, hold: str, ids: Sequence[int]) -> None:
        """Makes the worker release these handles."""
        self._call(ops.Forget(hold, tuple(ids)))

    def export(self, hold: str, ids: Sequence[int]) -> list[int]:
        """Returns descriptors of held handles, in the order of `ids`; the caller's."""
        return self._given(ops.Export(hold, tuple(ids)))

    def create(self, copy: CopyName, ballast: int) -> None:
        """Makes physical memory for all handles of the copy, and ballast. Keeps none where it raises NoRoom."""
        self._call(ops.Create(copy, ballast), timeout=60.0)

    def hold_ballast(self, hold: str, nbytes: int) -> None:
        """Occupies room for the driver's own needs, unless it does already. Raises NoRoom."""
        self._call(ops.HoldBallast(hold, nbytes))

    def drop_ballast(self, hold: str) -> None:
        """Releases the ballast."""
        self._call(ops.DropBallast(hold))
