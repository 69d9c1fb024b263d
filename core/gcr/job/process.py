"""One process of a job, as gcrd knows it: identity, agent, state, and what it had when it was suspended."""

import logging
from collections.abc import Callable
from threading import Lock

from msgspec import Struct, field

from gcr.devices import uuid_text
from gcr.errors import GcrError, PeerGone
from gcr.job.moves import Moves
from gcr.job.states import State, Strategy, Way, after, before, move, settled
from gcr.job.suspension import Suspension
from gcr.peers.agent import AgentPeer
from gcr.peers.shares import NOTHING, Shares
from gcr.processes import FileAccess, ProcessIdentity, alive
from gcr.protocol.agentwire import StatusReply
from gcr.protocol.wire import AgentFlag

log = logging.getLogger("gcr.daemon")

ASK_AGAIN = 30.0  # seconds: room that was short may be there by then, or taken by another process


class Prepared(Struct, frozen=True):
    """The bytes a worker was last asked to have ready for a process, so that it is not asked every second."""

    worker_pid: int
    bytes: int
    asked_at: float

    def covers(self, worker_pid: int, size: int, now: float) -> bool:
        return worker_pid == self.worker_pid and size <= self.bytes and now - self.asked_at < ASK_AGAIN


class AgentView(Struct):
    """The last view that a process's agent has given of it."""

    status: StatusReply | None = None
    uuids: dict[int, str] = field(default_factory=dict)  # ordinal in the process -> UUID
    shares: Shares = NOTHING
    ending: bool = False  # the process is in exit(), or its driver has shut down


class Process(Struct):
    job: str
    identity: ProcessIdentity
    _state: State = State.RUNNING
    way: Way = Way.WHOLE
    copied_out: bool = False  # by its own agent, `copyout`; chosen anew at each checkpoint
    peer: AgentPeer | None = None
    file_access: FileAccess | None = None  # when it was first heard of
    suspension: Suspension = field(default_factory=Suspension)
    waits: bool = False  # it has nothing on a device: its first call of a driver waits until the job runs
    seen: AgentView = field(default_factory=AgentView)
    prepared: dict[str, "Prepared"] = field(default_factory=dict)  # by device UUID
    _lock: Lock = field(default_factory=Lock)

    @property
    def agent(self) -> AgentPeer:
        """Returns the agent. Raises PeerGone, without a state: a command that fails says where it leaves the job."""
        if self.peer is None or not self.connected:
            raise PeerGone(f"process {self.identity.pid} is gone, or its agent is")
        return self.peer

    @property
    def connected(self) -> bool:
        """Tells whether the agent has a connection to this daemon."""
        return self.peer is not None and not self.peer.channel.closed.is_set()

    @property
    def hold(self) -> str:
        """The name under which workers keep this process's memory."""
        return f"{self.identity.pid}.{self.identity.start_time}"

    @property
    def ended(self) -> bool:
        return self.state == State.EXITED or not alive(self.identity)

    @property
    def departed(self) -> bool:
        """It has ended, or its driver has, as far as that is known: it can neither be suspended nor brought back."""
        return self.seen.ending or self.ended

    def look(self) -> StatusReply:
        """Ask the agent how things stand, and remember it."""
        status = self.agent.status()
        before = self.seen.status.status.flags if self.seen.status else 0
        if status.status.flags & ~before & AgentFlag.MAPS_OVER:
            log.info("job %s: process %d: its runtime keeps released memory: mapped over", self.job, self.identity.pid)
        if status.status.flags & ~before & AgentFlag.RESERVES_AGAIN:
            text = "job %s: process %d: its runtime keeps released memory: addresses reserved again"
            log.info(text, self.job, self.identity.pid)
        self.seen.uuids.update({d.ordinal: uuid_text(d.uuid) for d in status.devices})  # first: rows look there
        self.seen.status = status
        self.seen.ending = bool(status.status.flags & AgentFlag.ENDING)
        return status

    def begin(self) -> None:
        """Allows the first call. A process that cannot be told now connects again, and its next welcome tells it."""
        try:
            self.agent.begin()
        except GcrError as error:
            log.info("job %s: process %d was not told to begin: %s", self.job, self.identity.pid, error)

    def runs_on(self, moves: Moves) -> None:
        """Records the devices on which the process came back: facts known by the old ones move along."""
        self.suspension.came_back(moves)
        if moves:
            self.seen.uuids = {ordinal: moves.get(uuid, uuid) for ordinal, uuid in self.seen.uuids.items()}
            self.prepared.clear()  # elsewhere

    @property
    def state(self) -> State:
        """The state, which only the moves below change."""
        return self._state

    @property
    def strategy(self) -> Strategy:
        if self.way is Way.DRIVER:
            return Strategy.DRIVER
        return Strategy.COPYOUT if self.copied_out else Strategy.HANDOFF

    def move(self, to: State) -> None:
        """Raises IllegalMove, and PeerGone for a process that has ended."""
        self._move(lambda state: move(state, to, self.way))

    def advance(self, step: str) -> None:
        """Moves to where a step leads from here, since draining may end before freezing. Raises as `move` does."""
        self._move(lambda state: after(state, step, self.way))

    def take_back(self, step: str) -> None:
        """Follows the undo of a step that was taken; else, and for an ended process, does nothing."""
        with self._lock:
            self._state = before(self._state, step, self.way)

    def settle(self, to: State) -> None:
        """Records where a recovery, the journal or the process itself says that it is. An ended process stays ended."""
        with self._lock:
            self._state = settled(self._state, to)

    def end(self) -> State:
        """Records that the process has ended. Returns the state before."""
        with self._lock:
            was, self._state = self._state, State.EXITED
        return was

    def _move(self, to: Callable[[State], State]) -> None:
        with self._lock:
            if self._state == State.EXITED:  # also in the middle of a transaction
                raise PeerGone(f"process {self.identity.pid} has ended", state=self._state)
            self._state = to(self._state)
