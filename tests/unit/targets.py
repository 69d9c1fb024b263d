"""A process inside a transaction, with an agent that says what the test wants, and one holder of all memory."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from gcr.devices import uuid_text
from gcr.engine.node import World
from gcr.engine.target import Target
from gcr.job.process import Process
from gcr.processes import ProcessIdentity
from gcr.protocol.agentwire import (
    CountRecord,
    DeviceRecord,
    ExportBatch,
    HandleRecord,
    MappingBatch,
    SharedBatch,
    StatusRecord,
    StatusReply,
)
from gcr.protocol.wire import FrameType, HandleFlag, MappingRecord

MiB = 1 << 20
RAW = b"\1" * 16
DEVICE = uuid_text(RAW)


class Channel:
    class closed:
        is_set = staticmethod(lambda: False)


@dataclass
class Agent:
    """Every handle is KEPT and with all its keepers already: nothing needs a descriptor."""

    handles: list[HandleRecord]
    places: list[MappingRecord]
    handed_over: list[int] = field(default_factory=list)
    channel: type[Channel] = Channel
    identity: ProcessIdentity = ProcessIdentity(4711, 1)  # noqa: RUF009

    def status(self):
        return StatusReply(StatusRecord(), (DeviceRecord(RAW, 0, 0, 0),))

    def export(self, transaction, after, limit):
        page = [h for h in self.handles if h.id > after][:limit]
        return ExportBatch.of(transaction, page, more=bool(page) and page[-1] is not self.handles[-1]), []

    def mappings(self, transaction):
        for place in self.places:
            yield MappingBatch.of(transaction, place.address, [place], more=place is not self.places[-1])

    def ask(self, kind, payload):
        """Shares nothing."""
        assert kind == FrameType.SHARED
        return SimpleNamespace(payload=SharedBatch.of(7, 1, 0, [], more=False).pack())

    def hand_over(self, transaction):
        self.handed_over.append(transaction)
        return CountRecord(transaction, len(self.handles), sum(h.size for h in self.handles))


class Node:
    class config:
        batch = 2
        prepare_s = 10.0


@dataclass
class Holder:
    """Worker and keeper of everything."""

    known: list[int]
    unexplained: int = 0
    handles = copies = property(lambda self: self)

    def held(self, _hold):
        return set(self.known)

    def ids(self, _pid):
        return self.known

    def counted(self, _pid):
        return 2 * MiB * len(self.known), self.unexplained

    def drop(self, _pid, ids):
        self.known = [i for i in self.known if i not in ids]


def target_of(agent: Agent) -> Target:
    process = Process("llm", ProcessIdentity(4711, 1), peer=agent)
    holder = Holder([h.id for h in agent.handles])
    made = Target(process, 7, Node, World("nvidia"), lambda: holder)
    made._workers[DEVICE] = holder
    return made


def kept(id: int, **more: int) -> HandleRecord:
    return HandleRecord(id, 2 * MiB, flags=HandleFlag.KEPT, mappings=1, **more)


def place(id: int, size: int = 2 * MiB) -> MappingRecord:
    return MappingRecord(id, id << 30, 0, size, 1, 1)
