"""The worker of a device, as the daemon sees it. A method is one JSON call.

It raises the worker's own error, PeerGone or DeadlinePassed.
"""

from gcr.peers.waiting import BRIEF, MEMORY_S, ROOM_S
from gcr.peers.worker_memory.calls import WorkerCalls
from gcr.peers.worker_memory.coming import WorkerComing
from gcr.peers.worker_memory.copies import WorkerCopies
from gcr.peers.worker_memory.handles import WorkerHandles
from gcr.peers.worker_memory.rings import WorkerRings
from gcr.protocol.operations import snapshot
from gcr.protocol.operations import worker as ops


class WorkerPeer(WorkerCalls):
    """The worker of one device. `hold` names the memory that it keeps of one process."""

    pid: int
    device: str

    @property
    def handles(self) -> WorkerHandles:
        """The operations on device memory."""
        return WorkerHandles(self.channel)

    @property
    def copies(self) -> WorkerCopies:
        """The operations on copies in the arena, and on snapshots that become copies."""
        return WorkerCopies(self.channel)

    @property
    def coming(self) -> WorkerComing:
        """The operations on memory of processes that are on their way here."""
        return WorkerComing(self.channel)

    @property
    def rings(self) -> WorkerRings:
        """The operations on rings in the arena."""
        return WorkerRings(self.channel)

    def ready(self, timeout: float) -> None:
        """Waits until the worker has its context. Raises the error of its start."""
        self._call(ops.Ready(), timeout=timeout)

    def attach(self, timeout: float) -> bool:
        """Tells whether the worker has a context. Without one it tries again: the device may have room by now."""
        return self._call(ops.Attach(), timeout=timeout).attached

    def detach(self) -> None:
        """Makes the worker give its context back and keep the arena. Raises WrongState while it holds memory."""
        self._call(ops.Detach(), timeout=ROOM_S)

    def give_up_snapshots(self) -> None:
        """Gives up snapshots that are not read in a moment, since the device has too little room."""
        self._call(snapshot.GiveUpSnapshots())

    def renew_room(self) -> None:
        """Has the driver make free device memory ready for the next save."""
        self._call(snapshot.RenewRoom())

    def release(self, hold: str) -> None:
        """Releases the device memory of a process; its copy in the arena stays."""
        self._call(ops.Release(hold), timeout=MEMORY_S)

    def forfeit(self, hold: str) -> None:
        """Releases all memory of a process, which is dead."""
        self._call(ops.Forfeit(hold), timeout=MEMORY_S)

    def surrender(self, hold: str) -> None:
        """Releases all memory of a process. Another worker takes the arena's part over from the keeper."""
        self._call(ops.Surrender(hold), timeout=MEMORY_S)

    def prepare(self, hold: str, nbytes: int) -> None:
        """Grows the pinned arena in the background, until the hold is forfeited."""
        self._call(ops.Prepare(hold, nbytes))

    def prepared(self) -> dict[str, int]:
        """Returns, by hold, the bytes of the arena that are ready for each process that `prepare` named."""
        return self._call(ops.Prepared(), timeout=BRIEF).bytes

    def counted(self, pid: int) -> tuple[int, int]:
        """Returns the bytes that the device counts for a process, and those that neither process nor worker explains.

        The latter count from the start of the worker's context, and may be below 0. They include handed-over memory.
        """
        found = self._call(ops.Memory())
        return found.by_pid.get(pid, 0), found.unexplained

    def spare(self) -> int:
        """Returns the free bytes of the device beyond a sixteenth of it, which is left to drivers; may be below 0."""
        return self._call(ops.Memory(), timeout=BRIEF).spare

    def arena(self) -> ops.ArenaFacts:
        """Returns the sizes of the arena, and the speed of the link once it is measured."""
        return self._call(ops.ArenaState())
