"""Device memory that processes share, as the agent of one of them lists it.

Each process has a random name (wire.h, kShared); another process's memory is named by its owner's name and id.
"""

from collections.abc import Iterator
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from gcr.errors import RolledBack
from gcr.peers.agent import PAGES_S, AgentPeer
from gcr.peers.paging import Paging
from gcr.protocol.agentwire import ExportRequest, SharedBatch, SharedRecord
from gcr.protocol.channel import AgentError
from gcr.protocol.codes import ErrorCode, SharedFlag
from gcr.protocol.wire import FrameType

LIMIT = 1024  # records of one page


class Foreign(Struct, frozen=True):
    """Memory of another process that this one holds: its id here, its size, its owner's name, and its id there.

    device: the ordinal here of the device where it lies · devices: bit d: device ordinal d may read or write it here
    """

    id: int
    size: int
    owner: int
    there: int
    device: int = 0
    devices: int = 0


class Lent(Struct, frozen=True):
    """Memory of this process that another one holds. `pid`: the other's as this one sees it, 0 if it does not."""

    id: int
    borrower: int
    pid: int


class Shares(Struct, frozen=True):
    """All that one process shares. `process`: its own name; 0 for an agent of a gcr that lets no process share."""

    process: int = 0
    foreign: tuple[Foreign, ...] = ()
    lent: tuple[Lent, ...] = ()

    @property
    def any(self) -> bool:
        return bool(self.foreign or self.lent)

    @property
    def borrowed(self) -> Self:
        """Returns the part about memory of others."""
        return replace(self, lent=())


NOTHING = Shares()


def shares_of(agent: AgentPeer, transaction: int = 0) -> Shares:
    """Returns what the agent lists, in any phase. Raises RolledBack, DeadlinePassed, PeerGone."""
    if not (pages := list(_pages(agent, transaction))):
        return NOTHING
    records = [record for page in pages for record in page.records]
    foreign = tuple(_foreign(each) for each in records if each.flags & SharedFlag.FOREIGN)
    lent = tuple(Lent(each.id, each.process, each.pid) for each in records if not each.flags & SharedFlag.FOREIGN)
    return Shares(pages[-1].reply.process, foreign, lent)


def _pages(agent: AgentPeer, transaction: int) -> Iterator[SharedBatch]:
    """Yields no page of an agent that does not know the request: an earlier gcr covers no shared memory."""
    more, pages = True, Paging(f"process {agent.identity.pid}, shared memory", PAGES_S)
    while more:
        try:
            batch = _page(agent, transaction, pages.cursor)
        except RolledBack as refusal:
            if pages.cursor == 0 and _is_unknown(refusal):
                return
            raise
        yield batch
        if more := bool(batch.reply.more):
            pages.turn(batch.reply.last_id)


def _page(agent: AgentPeer, transaction: int, cursor: int) -> SharedBatch:
    request = ExportRequest(transaction=transaction, after_id=cursor, limit=LIMIT)
    return SharedBatch.unpack(agent.ask(FrameType.SHARED, request.pack()).payload)


def _is_unknown(refusal: RolledBack) -> bool:
    cause = refusal.__cause__
    return isinstance(cause, AgentError) and cause.agent_code == ErrorCode.BAD_FRAME


def _foreign(record: SharedRecord) -> Foreign:
    return Foreign(record.id, record.size, record.process, record.there, record.device, record.devices)
