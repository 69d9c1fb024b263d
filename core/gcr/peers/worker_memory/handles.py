"""Device memory that a worker holds of processes, as the daemon sees it."""

from collections.abc import Sequence

from gcr.drain import HandleSpec
from gcr.peers.worker_memory.calls import WorkerCalls, rows
from gcr.protocol.operations import worker as ops


class WorkerHandles(WorkerCalls):
    """The operations on handles that the worker holds."""

    def held(self, hold: str) -> set[int]:
        """Ids of the device memory it holds of a process."""
        return set(self._call(ops.Held(hold)).ids)

    def adopt(self, hold: str, specs: Sequence[HandleSpec], fds: Sequence[int]) -> None:
        self._call(ops.Adopt(hold, rows(specs)), fds)

    def forget(self, hold: str, ids: Sequence[int]) -> None:
        self._call(ops.Forget(hold, tuple(ids)))

    def export(self, hold: str, ids: Sequence[int]) -> list[int]:
        """Descriptors of handles it holds, in order; the caller's."""
        return self._given(ops.Export(hold, tuple(ids)))

    def create(self, hold: str, ballast: int) -> None:
        """Physical memory for everything in the table, and `ballast` bytes more; raises NoRoom, nothing kept."""
        self._call(ops.Create(hold, ballast), timeout=60.0)

    def hold_ballast(self, hold: str, nbytes: int) -> None:
        """Occupy room for the driver's own needs; nothing if it holds some already. Raises NoRoom."""
        self._call(ops.HoldBallast(hold, nbytes))

    def drop_ballast(self, hold: str) -> None:
        self._call(ops.DropBallast(hold))
