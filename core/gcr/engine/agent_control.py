"""Control state by the process's own hand: its agent makes the runtime's snapshot calls (ControlMeans.AGENT).

    gate · copy out · unmap, free · freeze · Lock · Backup … Restore · Unlock · thaw · create, map · copy in · gate

Between Lock and Unlock nearly every other call of the runtime waits in that process, so nothing else is asked of its
agent there. A snapshot frees nothing of the context, and Restore wants the devices free of other processes.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gcr.control import ControlMeans, ControlPhase, ProcessView
from gcr.errors import DeviceShared, DriverError, UnsupportedState
from gcr.job.process import Process
from gcr.peers.control import ControlPeer
from gcr.protocol.wire import SnapshotPhase, SnapshotStep

_PHASES = {
    SnapshotPhase.UNKNOWN: ControlPhase.RUNNING,  # a runtime without snapshots was never locked by one
    SnapshotPhase.RUNNING: ControlPhase.RUNNING,
    SnapshotPhase.LOCKED: ControlPhase.LOCKED,
    SnapshotPhase.SAVED: ControlPhase.CHECKPOINTED,
}


class AgentControl(Struct, frozen=True):
    """A control helper for one process in one transaction: calls that change its state are made inside the process."""

    helper: ControlPeer
    process: Process
    transaction: int
    who: Callable[[int], str]  # names a process

    @property
    def means(self) -> ControlMeans:
        return self.helper.means

    def phase(self, _pid: int) -> ControlPhase:
        return _PHASES[self._look()]

    def inspect(self, pid: int) -> ProcessView:
        return replace(self.helper.inspect(pid), phase=self.phase(pid))

    def free_bytes(self) -> dict[str, int]:
        return self.helper.free_bytes()

    def holders(self, device: str) -> Mapping[int, int]:
        return self.helper.holders(device)

    def lock(self, _pid: int, deadline: float) -> None:
        self._step(SnapshotStep.LOCK, deadline)

    def checkpoint(self, _pid: int, deadline: float) -> None:
        self._step(SnapshotStep.BACKUP, deadline)

    def restore(self, pid: int, _devices: Mapping[str, str], deadline: float) -> None:
        """Restores the snapshot. Raises DeviceShared when other processes use its devices; it can be tried again."""
        try:
            self._step(SnapshotStep.RESTORE, deadline)
        except DriverError as error:
            refuse_shared(self.helper, pid, self.helper.inspect(pid).bytes_by_device, self.who, because=error)
            raise

    def unlock(self, _pid: int, deadline: float) -> None:
        self._step(SnapshotStep.UNLOCK, deadline)

    def refuse_without_snapshots(self) -> None:
        """Refuses a runtime that makes no snapshots. Raises UnsupportedState."""
        if self._look() == SnapshotPhase.UNKNOWN:
            text = f"the runtime of process {self.process.identity.pid} is too old to make snapshots"
            raise UnsupportedState(text, hint="--data-only, which leaves the context where it is")

    def _look(self) -> SnapshotPhase:
        return self.process.agent.snapshot(self.transaction, SnapshotStep.LOOK)

    def _step(self, step: SnapshotStep, deadline: float) -> None:
        self.process.agent.snapshot(self.transaction, step, deadline + 2)


def refuse_shared(
    helper: "ControlPeer | AgentControl",
    pid: int,
    devices: Iterable[str],
    who: Callable[[int], str],
    because: Exception | None = None,
) -> None:
    """Raises DeviceShared, with the other processes' names, for a process that needs its devices to itself."""
    for device in devices:
        others = {other: size for other, size in helper.holders(device).items() if other != pid}
        if others:
            names = ", ".join(f"{who(other)} ({size >> 20} MiB)" for other, size in sorted(others.items()))
            text = f"process {pid} only comes back to a device that no other process uses; on {device} there is {names}"
            hint = "wait until they have ended, or end them; then gcr restore"
            raise DeviceShared(text, hint=hint) from because
