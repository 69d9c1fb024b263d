"""Rings in a worker's arena, as the daemon sees them: the bytes of a process pass through them."""

from collections.abc import Sequence
from functools import partial

from gcr.peers.waiting import MEMORY_S, ROOM_S
from gcr.peers.worker_memory.calls import WorkerCalls
from gcr.protocol.operations import ring as ops
from gcr.protocol.operations.worker import CopyName


class WorkerRings(WorkerCalls):
    """The operations on the ring of a process."""

    def make(
        self, copy: CopyName, owner: str, slot_bytes: int, most: int, least: int, beyond: bool = False
    ) -> tuple[int, list[int]]:
        """Makes a ring in place of reserved room, until `drop`, `forget_copy` or `surrender`. Raises NoRoom.

        Returns the number of slots, `least` to `most`, and descriptors of their memory in order, the caller's.
        beyond: ignores the arena's limit.
        """
        asked = ops.MakeRing(copy, owner, slot_bytes, most, least, beyond)
        made, fds = self._all_given(asked, partial(ops.RingMemory, copy), timeout=ROOM_S)
        return made.slots, fds

    def lay_out_held(self, copy: CopyName) -> int:
        """Lays all held memory out on a line. Returns its bytes. Memory that comes back lies as it was sealed."""
        return self._call(ops.LayOutHeld(copy), timeout=MEMORY_S).bytes

    def fill(self, copy: CopyName, slot: int, window: tuple[int, int], deadline: float) -> None:
        """Copies a window (offset on the line, size) from the device to a slot. Raises RolledBack, DeadlinePassed."""
        self._call(ops.Fill(copy, slot, (window,), deadline), timeout=deadline + 5)

    def empty(self, copy: CopyName, slot: int, windows: Sequence[tuple[int, int]], deadline: float) -> None:
        """Copies the windows of a slot, one behind the other in it, to the memory that `create` made.

        Raises as `fill` does.
        """
        self._call(ops.Empty(copy, slot, tuple(windows), deadline), timeout=deadline + 5)

    def drop(self, copy: CopyName) -> None:
        """Gives the ring back to the arena."""
        self._call(ops.DropRing(copy), timeout=MEMORY_S)
