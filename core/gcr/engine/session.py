"""One process of a job inside one transaction, and the processes that serve it there."""

import logging
from collections.abc import Callable, Iterable, Mapping

from gcr.control import ControlMeans
from gcr.engine.books import Books
from gcr.engine.copyout import StagedCopy
from gcr.engine.node import Node, World
from gcr.engine.snapshot import AgentControl
from gcr.errors import StagedGone, WrongState
from gcr.job.moves import Moves, moved
from gcr.job.process import Process
from gcr.memory.escrow import Escrow, Keeper, staged_with
from gcr.peers.control import ControlPeer
from gcr.peers.worker import WorkerPeer
from gcr.protocol.agentwire import StatusReply
from gcr.protocol.wire import AgentPhase

log = logging.getLogger("gcr.engine")


class Session:
    """Ids, never addresses, cross the sockets."""

    def __init__(
        self, process: Process, transaction: int, node: Node, world: World, keeper: Callable[[], Keeper]
    ) -> None:
        self.process, self.transaction, self.node, self.world, self.keeper = process, transaction, node, world, keeper
        self.books = Books()
        self.moves: Moves = {}  # of a restore; everything else here goes by the devices to come back on
        self.spare = Escrow()  # the daemon's own duplicates, should the supervisor die on the way
        self.copy: StagedCopy | None = None  # strategy `copyout`: every byte of it, from before it is released
        self._workers: dict[str, WorkerPeer] = {}

    @property
    def pid(self) -> int:
        return self.process.identity.pid

    @property
    def hold(self) -> str:
        """The name under which workers keep this process's memory."""
        return self.process.hold

    @property
    def owner(self) -> str:
        return f"{self.process.job}/{self.pid}"

    @property
    def generation(self) -> int:
        """As of when it was last looked at: only a restore changes it."""
        status = self.process.last_status or self.process.look()
        return status.status.generation

    @property
    def ballast_by_device(self) -> Mapping[str, int]:
        return moved(self.process.ballast_by_device, self.moves)

    @property
    def bytes_by_device(self) -> Mapping[str, int]:
        return self.books.bytes_by_device

    @property
    def devices(self) -> list[str]:
        return self.books.devices

    def comes_to_hidden(self) -> bool:
        """Onto a device that the process does not see: a driver lets control state back there, but no memory in."""
        return any(device not in self.process.uuids.values() for device in self.bytes_by_device)

    @property
    def control(self) -> "ControlPeer | AgentControl":
        """The vendor's helper; where only the process itself can save its control state, its agent through it."""
        helper = self.node.control(self.world)
        if helper.means is not ControlMeans.AGENT:
            return helper
        return AgentControl(helper, self.process, self.transaction)

    @property
    def keeps_context(self) -> bool:
        """What the runtime has for itself stays on the device, also while its control state is saved."""
        return self.control.means is ControlMeans.AGENT

    def worker(self, device: str) -> WorkerPeer:
        """The same one all through the transaction: one that took its place would hold nothing."""
        if device not in self._workers:
            self._workers[device] = self.node.worker(self.world, device)
        return self._workers[device]

    def workers(self) -> list[WorkerPeer]:
        return [self.worker(device) for device in sorted(self.bytes_by_device)]

    def attach(self, device: str) -> bool:
        """Whether the device's worker has a context, after a try."""
        return self.worker(device).attach(self.node.config.worker_start_s)

    def without_contexts(self) -> bool:
        """The workers give their contexts back, and with them the room these take; False: others need them."""
        try:
            for worker in self.workers():
                worker.release(self.hold)
                worker.detach()
        except WrongState:
            return False
        return True

    def counted_by_control(self, device: str) -> int:
        return self.control.inspect(self.pid).bytes_by_device.get(device, 0)

    def free_bytes(self, devices: Iterable[str]) -> dict[str, int]:
        """As the devices themselves count."""
        free = self.control.free_bytes()
        return {device: free.get(device, 0) for device in devices}

    def staged(self) -> list[int]:
        """The sealed tables and segments to come back from; the caller's.

        A program may have closed those of its agent: then they come from the keeper. Raises RolledBack.
        """
        try:
            return self.process.agent.unstage(self.transaction)
        except StagedGone as gone:
            log.warning("%s: its keeper is asked", gone)
            found = staged_with(self.keeper(), self.pid)
            if not found:
                raise
            return found

    def forget_copy(self) -> None:
        """The daemon's own descriptors of it."""
        if self.copy is not None:
            self.copy.close()
        self.copy = None

    def come_back(self, moves: Moves) -> None:
        """It is suspended, and to come back on these devices."""
        self.moves = moves
        self.books.suspended = moved(self.process.bytes_by_device, moves)

    def left(self, device: str) -> str:
        """The device that it left, of one to come back on."""
        return next((old for old, new in self.moves.items() if new == device), device)

    def look(self) -> StatusReply:
        """Ask the process how things stand, and take it into the books. Raises Contradiction."""
        status = self.process.look()
        self.books.reports.apply(status)
        return status

    def close_books(self) -> None:
        """Reads the last of the books behind the closed gate, before anything is released. Raises Contradiction."""
        self.books.close(self.process.agent.mappings(self.transaction))

    def resume(self) -> None:
        if self.phase() != AgentPhase.RUNNING:
            self.process.agent.resume(self.transaction)

    def phase(self) -> int:
        return self.process.agent.status().status.phase
