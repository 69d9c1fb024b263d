"""Rings in a worker's arena, as the daemon sees them: the bytes of a process pass through them."""

from gcr.peers.worker_memory.calls import WorkerCalls
from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.operation import ask


class WorkerRings(WorkerCalls):
    """The operations on the ring of a process."""

    def make(
        self, hold: str, owner: str, slot_bytes: int, most: int, least: int, beyond: bool = False
    ) -> tuple[int, list[int]]:
        """Returns the number of slots, `least` to `most`, and their memory in order; the descriptors are the caller's.

        Instead of what was reserved; until `drop`, `forget_copy` or `surrender`. `beyond`: the arena's limit.
        Raises NoRoom.
        """
        asked = ops.MakeRing(hold, owner, slot_bytes, most, least, beyond)
        made, fds = ask(self.channel, asked, timeout=120.0)
        return made.slots, fds

    def lay_out_held(self, hold: str) -> int:
        """All that is held lies on a line from now on; its bytes. (What comes back lies as it was sealed.)"""
        return self._call(ops.LayOutHeld(hold), timeout=60.0).bytes

    def fill(self, hold: str, window: tuple[int, int, int], deadline: float) -> None:
        """Copy a window, slot and offset on the line and size, from the device. Raises RolledBack, DeadlinePassed."""
        self._call(ops.Fill(hold, window, deadline), timeout=deadline + 5)

    def empty(self, hold: str, window: tuple[int, int, int], deadline: float) -> None:
        """The same from the slot to the device; `create` made the memory."""
        self._call(ops.Empty(hold, window, deadline), timeout=deadline + 5)

    def drop(self, hold: str) -> None:
        self._call(ops.DropRing(hold), timeout=60.0)
