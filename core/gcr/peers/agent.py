"""An agent, as the daemon sees it: the requests of wire.h as methods. Each names its transaction.

A method blocks until the agent has answered or its timeout has passed. It raises PeerGone, DeadlinePassed or the error
that the agent's answer stands for. The caller owns the descriptors that come back.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from gcr.devices import uuid_bytes
from gcr.errors import (
    AddressTaken,
    DriverError,
    DriverGone,
    GcrError,
    NoDescriptors,
    NoRoom,
    RolledBack,
    StagedGone,
    Stuck,
    UnsupportedState,
    WrongState,
)
from gcr.memory.escrow import MOST_STAGED
from gcr.peers.paging import Paging
from gcr.processes import ProcessIdentity
from gcr.protocol.agentwire import (
    CopyBatch,
    CountRecord,
    ExportBatch,
    ExportRequest,
    IdList,
    MappingBatch,
    MovedDevices,
    MovedRecord,
    QuiesceRequest,
    SnapshotReply,
    SnapshotRequest,
    StageRequest,
    StatusReply,
    TransactionRecord,
)
from gcr.protocol.batches import batches, gathered
from gcr.protocol.channel import AgentError, Channel, Received
from gcr.protocol.seqpacket import close_all
from gcr.protocol.wire import AgentFlag, ErrorCode, FrameType, HelloRecord, SnapshotPhase, SnapshotStep

ANSWER_TIMEOUT = 10.0
PAGES_S = 60.0  # for all pages of a list
MAPPINGS_AT_ONCE = 1024  # records of a page
WAY_BACK_S = 60.0  # at least, for a request that gives a process its memory back


class AgentPeer(Struct):
    """The agent of one process.

    `hello`: the record with which it introduced itself · `hand_over_s`: longest answer to a request that moves the
    process's memory; one that gives it back has `WAY_BACK_S` at least
    """

    channel: Channel
    identity: ProcessIdentity
    hello: HelloRecord
    hand_over_s: float

    def status(self) -> StatusReply:
        return StatusReply.unpack(self.ask(FrameType.STATUS).payload)

    def export(self, transaction: int, after: int, limit: int) -> tuple[ExportBatch, list[int]]:
        request = ExportRequest(transaction=transaction, after_id=after, limit=limit)
        frame = self.ask(FrameType.EXPORT, request.pack())
        fds = frame.take_fds()
        try:
            batch = ExportBatch.unpack(frame.payload)
            if len(batch.handed) != len(fds):
                raise RolledBack(f"{self.identity.pid} sent {len(fds)} descriptors for {len(batch.handed)} handles")
        except BaseException:
            close_all(fds)
            raise
        return batch, fds

    def quiesce(self, transaction: int, deadline: float, pulse_ms: int) -> None:
        request = QuiesceRequest(transaction=transaction, deadline_ms=int(deadline * 1000), pulse_ms=pulse_ms)
        self.ask(FrameType.QUIESCE, request.pack(), timeout=deadline + ANSWER_TIMEOUT)

    def hand_over(self, transaction: int) -> CountRecord:
        return CountRecord.unpack(self.ask(FrameType.HAND_OVER, _named(transaction), timeout=self.hand_over_s).payload)

    def give(self, transaction: int, ids: Sequence[int], fds: Sequence[int]) -> None:
        """Has the process import physical memory, and map it at its old addresses."""
        payload = IdList(transaction=transaction, ids=tuple(ids)).pack()
        self.ask(FrameType.IMPORT, payload, fds, timeout=self._way_back_s)

    def rehome(self, transaction: int, ids: Sequence[int]) -> None:
        """Replaces handles that no other process holds by new memory with the same bytes; it can be exported again.

        Raises NoRoom, DriverError; then every byte is where it was.
        """
        self.ask(FrameType.REHOME, IdList(transaction=transaction, ids=tuple(ids)).pack(), timeout=self._way_back_s)

    def create(self, transaction: int, ids: Sequence[int]) -> None:
        """Makes new physical memory at the old addresses, of undefined bytes. Raises NoRoom, and makes none then."""
        self.ask(FrameType.CREATE, IdList(transaction=transaction, ids=tuple(ids)).pack(), timeout=self._way_back_s)

    def copy(self, direction: FrameType, batch: CopyBatch, segments: Sequence[int], timeout: float) -> CountRecord:
        """Copies out or in (COPY_OUT, COPY_IN). Returns how many records of the batch were done, at least one."""
        return CountRecord.unpack(self.ask(direction, batch.pack(), segments, timeout=timeout).payload)

    def map(self, transaction: int) -> None:
        self.ask(FrameType.MAP, _named(transaction), timeout=self._way_back_s)

    def moved(self, transaction: int, moves: Mapping[str, str]) -> None:
        """Tells the agent the devices that the process has from `resume` on. `moves`: UUIDs, old to new."""
        records = tuple(MovedRecord(uuid_bytes(old), uuid_bytes(new)) for old, new in moves.items())
        self.ask(FrameType.MOVED, MovedDevices(transaction, records).pack())

    def discard(self, transaction: int) -> None:
        self.ask(FrameType.DISCARD, _named(transaction), timeout=self._way_back_s)

    def begin(self) -> None:
        """Allows the first driver call of a process that its welcome held back."""
        self.ask(FrameType.BEGIN, _named(0))

    def resume(self, transaction: int) -> None:
        self.ask(FrameType.RESUME, _named(transaction))

    def freeze(self, transaction: int) -> None:
        self.ask(FrameType.FREEZE, _named(transaction))

    def thaw(self, transaction: int) -> None:
        self.ask(FrameType.THAW, _named(transaction))

    def leave(self, transaction: int) -> None:
        """Has the agent close all that CRIU could not save, and what is staged, and stay away while its mark is there.

        The connection ends once nothing else is open. Raises WrongState without a mark (rendezvous/away.py), or while
        the process has some of its device memory.
        """
        self.ask(FrameType.LEAVE, _named(transaction))

    def snapshot(self, transaction: int, step: SnapshotStep, timeout: float = ANSWER_TIMEOUT) -> SnapshotPhase:
        """Takes a step of the runtime's snapshot of its own process, or looks; returns the phase after it.

        Raises UnsupportedState where no runtime of the process makes snapshots, DriverError.
        """
        request = SnapshotRequest(transaction=transaction, step=step)
        answer = self.ask(FrameType.SNAPSHOT, request.pack(), timeout=timeout)
        return SnapshotPhase(SnapshotReply.unpack(answer.payload).phase)

    def stage(self, transaction: int, fds: Sequence[int]) -> None:
        for offset, part in batches(fds):
            request = StageRequest(transaction=transaction, offset=offset, total=len(fds))
            self.ask(FrameType.STAGE, request.pack(), part)

    def unstage(self, transaction: int) -> list[int]:
        """Returns duplicates of the staged descriptors; the agent keeps its own until `drop`. Raises StagedGone."""
        return gathered(self._staged(transaction))

    def _staged(self, transaction: int) -> Iterator[list[int]]:
        more, pages = True, Paging(f"process {self.identity.pid}, staged descriptors", PAGES_S)
        while more:
            request = StageRequest(transaction=transaction, offset=pages.cursor, total=0)
            frame = self.ask(FrameType.UNSTAGE, request.pack())
            yield (fresh := frame.take_fds())
            came, total = pages.cursor + len(fresh), StageRequest.unpack(frame.payload).total
            if total > MOST_STAGED:
                raise RolledBack(f"agent {self.identity.pid} says that it holds {total} segments")
            if more := came < total:
                if not fresh:  # the agent gives none only where the program has closed the next one
                    raise StagedGone(f"the program of process {self.identity.pid} closed what was staged with it")
                pages.turn(came)

    def drop(self, transaction: int) -> None:
        self.ask(FrameType.DROP, _named(transaction))

    def mappings(self, transaction: int) -> Iterator[MappingBatch]:
        """Yields the mappings of all handles, page by page."""
        more, pages = True, Paging(f"process {self.identity.pid}, mappings", PAGES_S)
        while more:
            request = ExportRequest(transaction=transaction, after_id=pages.cursor, limit=MAPPINGS_AT_ONCE)
            batch = MappingBatch.unpack(self.ask(FrameType.MAPPINGS, request.pack()).payload)
            yield batch
            if more := bool(batch.reply.more):
                pages.turn(batch.reply.last_id)

    @property
    def _way_back_s(self) -> float:
        return max(WAY_BACK_S, self.hand_over_s)

    def frozen(self) -> bool:
        return bool(self.status().status.flags & AgentFlag.FROZEN)

    def ask(
        self, kind: FrameType, payload: bytes = b"", fds: Sequence[int] = (), timeout: float = ANSWER_TIMEOUT
    ) -> Received:
        """Asks for what no method here is about: see gate.py."""
        try:
            return self.channel.call(kind, payload, fds, timeout=timeout)
        except AgentError as refusal:
            raise _typed(self.identity.pid, kind, refusal) from refusal


def _typed(pid: int, kind: FrameType, refusal: AgentError) -> GcrError:
    """Returns the GcrError for an agent's error. After each the target is as it was before the request."""
    text = f"process {pid}, {kind.name.lower()}: {refusal.message}"
    match refusal.agent_code:
        case ErrorCode.STUCK:
            streams = ", ".join(f"{s.stream:#x} on device {s.device}" for s in refusal.stuck) or "a call in flight"
            return Stuck(f"{text}; stuck: {streams}", hint="docs/troubleshooting.md#stuck")
        case ErrorCode.DRIVER:
            return DriverError(f"{text} (driver error {refusal.vendor_error})")
        case ErrorCode.DRIVER_GONE:
            return DriverGone(text)
        case ErrorCode.NO_MEMORY | ErrorCode.NO_ROOM:
            return NoRoom(text, missing=None)
        case ErrorCode.NO_DESCRIPTORS:
            return NoDescriptors(text)
        case ErrorCode.ADDRESS_TAKEN:
            return AddressTaken(text)
        case ErrorCode.REFUSED:
            return UnsupportedState(text)
        case ErrorCode.WRONG_PHASE | ErrorCode.WRONG_TRANSACTION:
            return WrongState(text)
        case _:
            return RolledBack(text)


def _named(transaction: int) -> bytes:
    return TransactionRecord(transaction=transaction).pack()
