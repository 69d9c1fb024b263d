"""The worker of a device, as the daemon sees it. A method is one JSON call.

It raises what the worker raised, PeerGone or DeadlinePassed.
"""

from typing import Any

from msgspec import to_builtins

from gcr.peers.waiting import BRIEF, CALL_TIMEOUT
from gcr.peers.worker_memory.calls import WorkerCalls
from gcr.peers.worker_memory.copies import WorkerCopies
from gcr.peers.worker_memory.handles import WorkerHandles
from gcr.peers.worker_memory.rings import WorkerRings
from gcr.protocol.operations import worker as ops


class WorkerPeer(WorkerCalls):
    """The worker of one device. `hold` names what it keeps of one process in one transaction."""

    pid: int
    device: str

    @property
    def handles(self) -> WorkerHandles:
        """The device memory it holds."""
        return WorkerHandles(self.channel)

    @property
    def copies(self) -> WorkerCopies:
        """The copies in its arena, and the snapshots that become copies."""
        return WorkerCopies(self.channel)

    @property
    def rings(self) -> WorkerRings:
        return WorkerRings(self.channel)

    def ready(self, timeout: float) -> None:
        """Wait until it has its context. Raises what kept it from getting one."""
        self._call(ops.Ready(), timeout=timeout)

    def attach(self, timeout: float = CALL_TIMEOUT) -> bool:
        """Returns True if it has a context. Without one it tries once more: the device may have had no room before."""
        return self._call(ops.Attach(), timeout=timeout).attached

    def detach(self) -> None:
        """It gives its context back and goes on keeping the arena. Raises WrongState while it holds memory."""
        self._call(ops.Detach(), timeout=120.0)

    def give_up_snapshots(self) -> None:
        """Gives up snapshots that are not read in a moment, since its device has too little room."""
        self._call(ops.GiveUpSnapshots())

    def release(self, hold: str) -> None:
        """Let go of the device memory; what was drained stays in the arena."""
        self._call(ops.Release(hold), timeout=60.0)

    def forfeit(self, hold: str) -> None:
        """Let go of everything: its process is dead."""
        self._call(ops.Forfeit(hold), timeout=60.0)

    def surrender(self, hold: str) -> None:
        """Let go of everything, the arena's memory included: another worker takes it over from its keeper."""
        self._call(ops.Surrender(hold), timeout=60.0)

    def prepare(self, hold: str, owner: str, nbytes: int) -> None:
        """Grow the pinned arena in the background, until the hold is forfeited."""
        self._call(ops.Prepare(hold, owner, nbytes))

    def prepared(self) -> dict[str, int]:
        """Bytes of the arena that are ready for each process that `prepare` named, by hold."""
        return self._call(ops.Prepared(), timeout=BRIEF).bytes

    def counted(self, pid: int) -> tuple[int, int]:
        """Returns the bytes that the device counts for a process, and those it counts for none and no worker explains.

        The latter since the worker's context was made; it may be less than nothing. Handed-over memory belongs there.
        """
        found = self._call(ops.Memory())
        return found.by_pid.get(pid, 0), found.unexplained

    def arena(self) -> dict[str, Any]:
        """Returns the fields of ArenaFacts; a speed is missing until it is measured."""
        facts: dict[str, Any] = to_builtins(self._call(ops.ArenaState()))
        return facts
