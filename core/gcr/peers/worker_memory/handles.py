"""Device memory that a worker holds of processes, as the daemon sees it."""

from collections.abc import Sequence

from gcr.drain import HandleSpec
from gcr.peers.waiting import BRIEF, MEMORY_S
from gcr.peers.worker_memory.calls import WorkerCalls, rows
from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.worker import CopyName


class WorkerHandles(WorkerCalls):
    """The operations on handles that the worker holds."""

    def held(self, hold: str) -> set[int]:
        """Returns the ids of the device memory that the worker holds of a process."""
        return set(self._call(ops.Held(hold)).ids)

    def adopt(self, hold: str, specs: Sequence[HandleSpec], fds: Sequence[int], lent: bool = False) -> None:
        """Gives the worker handles by their descriptors, which stay the caller's. lent: the process keeps its own."""
        self._call(ops.Adopt(hold, rows(specs), lent), fds)

    def forget(self, hold: str, ids: Sequence[int]) -> None:
        """Makes the worker release these handles."""
        self._call(ops.Forget(hold, tuple(ids)))

    def export(self, hold: str, ids: Sequence[int]) -> list[int]:
        """Returns descriptors of held handles, in the order of `ids`; the caller's."""
        return self._given(ops.Export(hold, tuple(ids)))

    def create(self, copy: CopyName, ballast: int) -> int:
        """Makes physical memory for all handles of the copy, and ballast. Keeps none where it raises NoRoom.

        Takes memory that is resident beside the copy instead. Returns its bytes, which need no refill.
        """
        return self._call(ops.Create(copy, ballast), timeout=MEMORY_S).bytes

    def uncreate(self, hold: str) -> None:
        """Takes `create` back: memory that was resident is so again, all else is released."""
        self._call(ops.Uncreate(hold), timeout=MEMORY_S)

    def stay(self, copy: CopyName) -> int:
        """Makes the held memory resident beside a whole copy. Returns its bytes. Raises WrongState without one."""
        return self._call(ops.Stay(copy), timeout=MEMORY_S).bytes

    def resident(self) -> dict[str, tuple[int, float]]:
        """Returns, by hold, the bytes that can be evicted, and since when they are resident (time.monotonic()).

        Memory that a restore has claimed is named with 0 bytes.
        """
        return self._call(ops.Resident(), timeout=BRIEF).resident

    def evict(self, hold: str) -> int:
        """Releases resident memory of a process, unless a restore has it. Returns its bytes."""
        return self._call(ops.Evict(hold), timeout=MEMORY_S).bytes

    def hold_ballast(self, hold: str, nbytes: int) -> None:
        """Occupies room for the driver's own needs, unless it does already. Raises NoRoom."""
        self._call(ops.HoldBallast(hold, nbytes))

    def drop_ballast(self, hold: str) -> None:
        """Releases the ballast."""
        self._call(ops.DropBallast(hold))
