"""Strategy `copyout`: the agent of a process copies its bytes, since no worker has a context or nothing is exported.

This is the one exception to "no copies in the target". The bytes go from the quiesced process straight into the arena,
and are staged before anything is released:

    PREPARE (exports, if any, to the escrows alone) · QUIESCE · COPY OUT · STAGE · HAND OVER · FREEZE · JOURNAL · COMMIT
    restore:  room, by the device's own count · thaw · CREATE at the old addresses · COPY IN · MAP · gates open

Deaths and failures, and the job after them:

| when                | then |
|---|---|
| before HAND OVER    | its memory is still its own: the gate opens, and an agent without a daemon opens it by itself |
| after it            | mapped back from the escrows; what no escrow has is created anew and copied in from the copy |
| no room for that    | it stays `data_suspended`, with a decision: nothing is lost, `gcr restore` when there is room |
| arena's worker dies | before STAGE the transaction rolls back; after it the worker is not needed |
| daemon dies         | agent and supervisor hold what was staged; the next daemon does the same as above |
| during a restore    | created memory is discarded, the control state frozen again: suspended as before |
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec import Struct, field
from msgspec.structs import replace

from gcr import units
from gcr.errors import DeadlinePassed, NoRoom, RolledBack
from gcr.memory.bundles import bundled
from gcr.memory.layout import SealedTable
from gcr.memory.pieces import Pieces
from gcr.peers.agent import AgentPeer
from gcr.protocol.agentwire import CopyBatch, CopyRecord, CountRecord
from gcr.protocol.operations.operation import Done
from gcr.protocol.seqpacket import close_all
from gcr.protocol.wire import MAX_DESCRIPTORS, AgentFlag, FrameType

PIECE = 64 << 20  # bytes of one copy call: what a deadline may have to wait for
FRAME_RECORDS = 1500  # fit MAX_FRAME
FRAME_IDS = 4096
BUDGET = 0.25  # seconds an agent copies before it answers, for progress
SLOWEST = 60.0  # seconds a single piece may take


class StagedCopy(Struct, frozen=True):
    """The staged copy of one process: a sealed table for each device, each followed by its segments' descriptors."""

    tables: Sequence[SealedTable]
    fds: list[int]  # ours

    @classmethod
    def of(cls, fds: list[int]) -> "StagedCopy":
        """Takes the descriptors. Raises DamagedTable; RolledBack where segments are missing."""
        return cls([each.table for each in bundled(fds, SealedTable.from_fd)], fds)

    def close(self) -> None:
        close_all(self.fds)
        self.fds.clear()

    @property
    def elsewhere(self) -> bool:
        """Tells whether the bytes are in no host memory; the tables alone were staged."""
        return any(table.handles and not table.segments for table in self.tables)

    def sizes(self) -> dict[int, int]:
        """Returns bytes by handle."""
        return {each.spec.id: each.spec.size for table in self.tables for each in table.handles}

    def devices(self) -> list[str]:
        return [device for table in self.tables for device in sorted({each.device for each in table.handles})]

    def pieces(self, device: str, wanted: "set[int] | None" = None) -> Iterator[CopyRecord]:
        """Yields every byte of a device's wanted handles (None: all) once; `segment` indexes `fds`."""
        first = 0
        for table in self.tables:
            if any(each.device == device for each in table.handles):
                yield from _pieces_of(table, first + 1, wanted)
            first += 1 + len(table.segments)


def _pieces_of(table: SealedTable, first: int, wanted: "set[int] | None") -> Iterator[CopyRecord]:
    """Yields pieces, of which none crosses a segment's end. Raises NotInPieces for a handle outside the segments."""
    line = Pieces.back_to_back(part.size for part in table.segments)
    handles = [each for each in table.handles if wanted is None or each.spec.id in wanted]
    handles.sort(key=lambda handle: handle.offset)
    for cut in line.cuts(((each.offset, each.spec.size) for each in handles), PIECE):
        yield CopyRecord(handles[cut.stretch].spec.id, cut.done, cut.at, cut.size, first + cut.piece)


def frames(pieces: Iterator[CopyRecord], fds: Sequence[int]) -> Iterator[tuple[list[CopyRecord], list[int]]]:
    """Yields pieces as they fit into messages; `segment` counts the message's own descriptors."""
    records: list[CopyRecord] = []
    used: dict[int, int] = {}  # index in `fds` -> index in the frame
    for piece in pieces:
        full = len(used) == MAX_DESCRIPTORS and piece.segment not in used
        if full or len(records) == FRAME_RECORDS:
            yield records, [fds[index] for index in used]
            records, used = [], {}
        place = used.setdefault(piece.segment, len(used))
        records.append(replace(piece, segment=place))
    if records:
        yield records, [fds[index] for index in used]


def _untold(_device: str, _done: Done) -> None:
    """Tells nothing: a rollback has no progress."""


class AgentCopy(Struct):
    """One copy by one agent, from or to what is staged, device after device.

    tell: called with each device's bytes so far · check: raises when the copy must not go on.
    """

    agent: AgentPeer
    transaction: int
    staged: StagedCopy
    tell: Callable[[str, Done], object] = _untold
    check: Callable[[], object] = lambda: None
    moved: dict[str, int] = field(default_factory=dict)  # by device

    def run(self, direction: FrameType, limit: float, wanted: "set[int] | None" = None) -> float:
        """Copies. Returns seconds. Raises DeadlinePassed, DriverError, NoRoom (host), PeerGone."""
        began = time.monotonic()
        for device in self.staged.devices():
            self.moved[device] = 0
            for records, segments in frames(self.staged.pieces(device, wanted), self.staged.fds):
                while records:
                    left = began + limit - time.monotonic()
                    done = self._step(direction, CopyBatch(self.transaction, tuple(records), _budget(left)), segments)
                    self.moved[device] += done.bytes
                    self.tell(device, Done(self.moved[device]))
                    records = records[done.count :]
        self._count(wanted)
        return time.monotonic() - began

    def _step(self, direction: FrameType, batch: CopyBatch, segments: Sequence[int]) -> CountRecord:
        self.check()
        done = self.agent.copy(direction, batch, segments, SLOWEST)
        if not 0 < done.count <= len(batch.records):
            raise RolledBack(f"an agent copied {done.count} pieces of {len(batch.records)}")
        return done

    def _count(self, wanted: "set[int] | None") -> None:
        """Raises RolledBack unless every wanted byte was copied."""
        expected = sum(size for id, size in self.staged.sizes().items() if wanted is None or id in wanted)
        if sum(self.moved.values()) != expected:
            raise RolledBack(f"{sum(self.moved.values())} bytes were copied, there are {expected}")


def _budget(left: float) -> int:
    """Returns milliseconds for one message. Raises DeadlinePassed."""
    if left <= 0:
        raise DeadlinePassed("the agent's copy was not done in time")
    return max(1, int(1000 * min(BUDGET, left)))


def unexportable(flags: int) -> bool:
    """Tells whether the runtime exports nothing: then only the agent can copy, however much room there is."""
    return bool(flags & AgentFlag.UNEXPORTABLE)


def create(
    agent: AgentPeer,
    transaction: int,
    sizes: Mapping[int, int],
    free: Callable[[], Mapping[str, int]],
    free_room: Callable[[], object],
) -> None:
    """Makes physical memory for the handles, at their old addresses. `free`: bytes by device. Raises NoRoom.

    free_room: called where there is no room; the memory is asked for once more then
    """
    ids = sorted(sizes)
    for first in range(0, len(ids), FRAME_IDS):
        frame = ids[first : first + FRAME_IDS]
        try:
            _create(agent, transaction, frame, free_room)
        except NoRoom as short:
            raise _short(sum(sizes[id] for id in ids[first:]), free()) from short


def _short(wanted: int, free: Mapping[str, int]) -> NoRoom:
    """Returns the refusal. It names the device only where the process has memory on one alone."""
    missing = max(1, wanted - sum(free.values()))
    where = " and ".join(sorted(free))
    text = f"{units.size(missing)} short on device {where} of {units.size(wanted)} wanted"
    return NoRoom(text, missing=missing, device=where if len(free) == 1 else None)


def _create(agent: AgentPeer, transaction: int, ids: Sequence[int], free_room: Callable[[], object]) -> None:
    try:
        agent.create(transaction, ids)
    except NoRoom:
        free_room()
        agent.create(transaction, ids)


@contextmanager
def short_on(device: str) -> Iterator[None]:
    """Names this device in a NoRoom that is raised within the block."""
    try:
        yield
    except NoRoom as short:
        short.device = device
        raise


def refuse_without_room(needs: Mapping[str, int], free: Mapping[str, int]) -> None:
    """Raises NoRoom where a device has less free than needed, in bytes by device.

    A driver that finds too little room at a restore never gives the process back.
    """
    for device, wanted in needs.items():
        have = free.get(device, 0)
        if missing := max(0, wanted - have):
            there, short, all_of_it = map(units.size, (have, missing, wanted))
            text = f"device {device} has {there} free, {short} short of the {all_of_it} wanted"
            raise NoRoom(text, missing=missing, device=device)
