"""One process of a job in one transaction, and the processes that serve it there."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from gcr.control import ControlMeans
from gcr.engine.agent_control import AgentControl
from gcr.engine.books import Books
from gcr.engine.copyout import StagedCopy
from gcr.engine.duplicates import staged_with
from gcr.engine.joint import Borrowed
from gcr.engine.node import Node, World
from gcr.errors import StagedGone, WrongState
from gcr.job.moves import Moves, moved
from gcr.job.process import Process
from gcr.memory.escrow import Escrow, Keeper
from gcr.peers.control import ControlPeer
from gcr.peers.shares import NOTHING, Shares
from gcr.peers.worker import WorkerPeer
from gcr.protocol.agentwire import StatusReply
from gcr.protocol.wire import AgentPhase

log = logging.getLogger("gcr.engine")


class Session:
    """The process, its books, and its way to the agent, the keeper, the control helper and the workers.

    Ids, never addresses, cross the sockets.
    """

    def __init__(
        self, process: Process, transaction: int, node: Node, world: World, keeper: Callable[[], Keeper]
    ) -> None:
        self.process, self.transaction, self.node, self.world, self.keeper = process, transaction, node, world, keeper
        self.books = Books()
        self.moves: Moves = {}  # a restore's; all the rest is keyed by the devices that the process comes back on
        self.spare = Escrow()  # the daemon's own duplicates, in case the supervisor dies
        self.shares: Shares = NOTHING  # as its agent listed them last
        self.borrowed: Sequence[Borrowed] = ()  # foreign ones of these, with their owners; see engine/lending.py
        self.copy: StagedCopy | None = None  # strategy `copyout`: every byte, from before the memory is released
        self._workers: dict[str, WorkerPeer] = {}

    @property
    def pid(self) -> int:
        return self.process.identity.pid

    @property
    def hold(self) -> str:
        """The name under which workers keep the process's memory."""
        return self.process.hold

    @property
    def owner(self) -> str:
        return f"{self.process.job}/{self.pid}"

    @property
    def generation(self) -> int | None:
        """Returns the generation of the last status; only a restore changes it. None for a process that has ended."""
        status = self.process.seen.status or self.process.look()
        return status.status.generation

    @property
    def ballast_by_device(self) -> Mapping[str, int]:
        return moved(self.process.suspension.ballast_by_device, self.moves)

    @property
    def bytes_by_device(self) -> Mapping[str, int]:
        return self.books.bytes_by_device

    @property
    def devices(self) -> list[str]:
        return self.books.devices

    def comes_to_hidden(self) -> bool:
        """Tells whether the process comes back on a device that it does not see.

        A driver restores control state there, but takes no memory in.
        """
        return any(device not in self.process.seen.uuids.values() for device in self.bytes_by_device)

    @property
    def control(self) -> "ControlPeer | AgentControl":
        """The vendor's control helper, or the process's agent where only the process can save its own control state."""
        helper = self.node.control(self.world)
        if helper.means is not ControlMeans.AGENT:
            return helper
        return AgentControl(helper, self.process, self.transaction, self.node.who)

    @property
    def keeps_context(self) -> bool:
        """Tells whether the runtime's own memory stays on the device while the control state is saved."""
        return self.control.means is ControlMeans.AGENT

    def worker(self, device: str) -> WorkerPeer:
        """Returns the device's worker, the same one all through the transaction: a successor would hold nothing."""
        if device not in self._workers:
            self._workers[device] = self.node.worker(self.world, device)
        return self._workers[device]

    def workers(self) -> list[WorkerPeer]:
        return [self.worker(device) for device in sorted(self.bytes_by_device)]

    def attach(self, device: str) -> bool:
        """Tells whether the device's worker has a context, after it has tried to get one."""
        worker, limit = self.worker(device), self.node.config.worker_start_s
        with self.node.turns.making([device], limit):
            return worker.attach(limit)

    def without_contexts(self) -> bool:
        """Makes the workers give up their contexts, and their room. Returns False where others need one."""
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
        """Returns the bytes that the devices themselves count as free."""
        free = self.control.free_bytes()
        return {device: free.get(device, 0) for device in devices}

    def staged(self) -> list[int]:
        """Returns descriptors of the sealed tables and segments to come back from; the caller closes them.

        A program may have closed its agent's, and an agent that was away has none: then they come from the keeper.
        Raises RolledBack, WrongState.
        """
        try:
            return self.process.agent.unstage(self.transaction)
        except (StagedGone, WrongState) as gone:
            log.warning("%s: its keeper is asked", gone)
            found = staged_with(self.keeper(), self.pid, self.transaction)
            if not found:
                raise
            return found

    def forget_copy(self) -> None:
        """Closes the daemon's own descriptors of the copy."""
        if self.copy is not None:
            self.copy.close()
        self.copy = None

    def come_back(self, moves: Moves) -> None:
        """Prepares the books for a suspended process that comes back on these devices."""
        self.moves = moves
        self.books.suspended = moved(self.process.suspension.bytes_by_device, moves)

    def left(self, device: str) -> str:
        """Returns the device that the process left, given the one it comes back on."""
        return next((old for old, new in self.moves.items() if new == device), device)

    def look(self) -> StatusReply:
        """Asks the process for its status and enters it into the books. Raises Contradiction."""
        status = self.process.look()
        self.books.reports.apply(status)
        return status

    def read_mappings(self) -> None:
        """Reads the last of the books behind the closed gate. Raises Contradiction."""
        self.books.read(self.process.agent.mappings(self.transaction))

    def resume(self) -> None:
        if self.phase() != AgentPhase.RUNNING:
            self.process.agent.resume(self.transaction)

    def phase(self) -> int:
        return self.process.agent.status().status.phase
