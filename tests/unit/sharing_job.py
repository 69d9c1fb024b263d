"""A job whose processes hold memory of each other: agents, workers and a keeper that pass real descriptors on.

Each piece of memory is a file in memory, so its descriptors can be told apart (fstat). An agent takes in what belongs
to it alone, and no memory of another before that one has its own back.
"""

import os
from dataclasses import dataclass, field
from types import SimpleNamespace

from gcr.config import Config
from gcr.control import ControlMeans
from gcr.devices import uuid_text
from gcr.engine.node import Course, World
from gcr.engine.progress import Meter
from gcr.engine.steps.books import CloseBooks
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.engine.turns import Turns
from gcr.engine.work import Options, Work
from gcr.errors import PeerGone
from gcr.job.process import Process
from gcr.job.states import State
from gcr.memory.escrow import Escrow, duplicate
from gcr.peers.shares import Foreign
from gcr.processes import ProcessIdentity
from gcr.protocol.agentwire import (
    CountRecord,
    DeviceRecord,
    ExportBatch,
    HandleRecord,
    MappingBatch,
    SharedBatch,
    SharedRecord,
    StatusRecord,
    StatusReply,
)
from gcr.protocol.wire import AgentFlag, AgentPhase, FrameType, HandleFlag, SharedFlag

MiB = 1 << 20
RAW = b"\1" * 16
DEVICE = uuid_text(RAW)
TRANSACTION = 7


def made(fds: list[int]) -> int:
    """Returns the number of new memory; its descriptor is added to `fds`."""
    fds.append(os.memfd_create("memory"))
    return os.fstat(fds[-1]).st_ino


@dataclass
class Agent:
    """One process. `own`: its memory by id · `kept`: ids that it cannot export · `has`: what it has at the moment

    fails: steps in their order, each with its error, or None where it works.
    """

    pid: int
    job: "SharingJob"
    own: dict[int, int]
    foreign: list[Foreign]
    kept: set[int] = field(default_factory=set)
    has: dict[int, int] = field(default_factory=dict)
    phase: int = AgentPhase.QUIESCED
    flags: int = 0
    fails: list[tuple[str, Exception | None]] = field(default_factory=list)
    channel = SimpleNamespace(closed=SimpleNamespace(is_set=lambda: False))

    @property
    def identity(self):
        return ProcessIdentity(self.pid, 1)

    def _reach(self, step):
        if self.fails and self.fails[0][0] == step and (error := self.fails.pop(0)[1]):
            raise error

    def status(self):
        record = StatusRecord(phase=self.phase, flags=self.flags, handles=len(self.own))
        return StatusReply(record, (DeviceRecord(RAW, 0, len(self.own), len(self.own) * MiB),))

    def export(self, transaction, after, limit):
        page = [id for id in sorted(self.own) if id > after][:limit]
        records = [HandleRecord(id, MiB, flags=HandleFlag.KEPT if id in self.kept else 0) for id in page]
        batch = ExportBatch.of(transaction, records, more=bool(page) and page[-1] != max(self.own))
        return batch, [self.job.descriptor(self.own[each.id]) for each in batch.handed]

    def mappings(self, transaction):
        yield MappingBatch.of(transaction, 0, [], more=False)

    def ask(self, kind, payload):
        assert kind == FrameType.SHARED
        held = [SharedRecord(f.id, f.size, f.owner, f.there, flags=SharedFlag.FOREIGN) for f in self.foreign]
        lent = [
            SharedRecord(each.there, each.size, other.pid, pid=other.pid)
            for other in self.job.agents.values()
            for each in other.foreign
            if each.owner == self.pid and other.pid not in self.job.dead
        ]
        batch = SharedBatch.of(TRANSACTION, self.pid, 0, [*held, *lent], more=False)
        return SimpleNamespace(payload=batch.pack())

    def hand_over(self, transaction):
        self._reach("hand_over")
        self.phase, count = AgentPhase.HANDED_OVER, len(self.own) + len(self.foreign)
        self.has.clear()
        return CountRecord(transaction, count, 0)

    def give(self, _transaction, ids, fds):
        self._reach("give")
        assert self.phase == AgentPhase.HANDED_OVER
        for id, fd in zip(ids, fds, strict=True):
            assert id not in self.has
            for foreign in self.foreign:
                if foreign.id == id and foreign.owner not in self.job.dead:
                    owner = self.job.agents[foreign.owner]
                    assert owner.phase != AgentPhase.HANDED_OVER or owner.has_own, "before its owner"
            self.has[id] = os.fstat(fd).st_ino
            self.job.said.append(f"{self.pid} has {id}")

    @property
    def has_own(self) -> bool:
        return all(self.has.get(id) == memory for id, memory in self.own.items())

    @property
    def has_all(self) -> bool:
        theirs = {each.id: self.job.agents[each.owner].own[each.there] for each in self.foreign}
        return self.has == {**self.own, **theirs}

    def map(self, _transaction):
        self._reach("map")
        assert self.phase == AgentPhase.HANDED_OVER
        assert self.has_all
        self.phase = AgentPhase.MAPPED
        self.job.said.append(f"{self.pid} maps")

    def discard(self, _transaction):
        self.has.clear()

    def resume(self, _transaction):
        self.phase = AgentPhase.RUNNING

    def drop(self, _transaction):
        self.flags &= ~AgentFlag.STAGED


class Worker:
    """The worker of the device. `kept`: descriptors by pid and id."""

    device = DEVICE
    handles = copies = property(lambda self: self)

    def __init__(self):
        self.kept = Escrow()

    def adopt(self, hold, specs, fds, lent=False):
        self.kept.put(int(hold.split(".")[0]), [spec.id for spec in specs], fds)

    def held(self, hold):
        return set(self.kept.ids(int(hold.split(".")[0])))

    def export(self, hold, ids):
        return self.kept.take(int(hold.split(".")[0]), ids)

    def forget(self, hold, ids):
        self.kept.drop(int(hold.split(".")[0]), ids)

    def forfeit(self, hold):
        self.kept.forget(int(hold.split(".")[0]))

    def forget_copy(self, _copy):
        pass


class SharingJob:
    """`owns`: ids by pid · `holds`: by pid, the pids and ids of what it holds of others. Close it."""

    def __init__(self, owns, holds, kept=()):
        self.fds: list[int] = []
        self.said: list[str] = []
        self.dead: set[int] = set()
        self.agents: dict[int, Agent] = {}
        self.worker, self.keeper = Worker(), Escrow()
        for pid, ids in owns.items():
            foreign = [Foreign(100 + n, MiB, *of) for n, of in enumerate(holds.get(pid, ()))]
            own = {id: made(self.fds) for id in ids}
            self.agents[pid] = Agent(pid, self, own, foreign, {id for owner, id in kept if owner == pid})
        self.node = SimpleNamespace(
            config=Config(batch=2),
            turns=Turns(),
            warm_worker=lambda *_: self.worker,
            worker=lambda *_: self.worker,
            locate=lambda *_: None,
            control=lambda _world: SimpleNamespace(means=ControlMeans.DRIVER),
        )
        self.targets = [self._target(agent) for agent in self.agents.values()]
        self.work = Work.of("llm", self.targets, self.node, Course("checkpoint", TRANSACTION, 60), Options())
        self.undo = Transaction("llm")
        for owner, id in kept:  # since an earlier restore
            memory = [self.descriptor(self.agents[owner].own[id])]
            self.keeper.put(owner, [id], memory)
            self.worker.kept.put(owner, [id], memory)
            os.close(memory[0])

    def _target(self, agent: Agent) -> Target:
        process = Process("llm", agent.identity, State.QUIESCED, peer=agent)
        target = Target(process, TRANSACTION, self.node, World("nvidia"), lambda: self.keeper)
        target._workers[DEVICE] = self.worker
        target.control_state = SimpleNamespace(thaw=lambda *_, **__: agent._reach("thaw"))
        return target

    def descriptor(self, memory: int) -> int:
        return duplicate([next(fd for fd in self.fds if os.fstat(fd).st_ino == memory)])[0]

    def target(self, pid: int) -> Target:
        return next(each for each in self.targets if each.pid == pid)

    def close_books(self) -> None:
        for target in self.targets:
            target.look()
            target.exports.export_new()
        self.work.count = SimpleNamespace(look_before=lambda *_, **__: None)
        CloseBooks(self.work, Meter(self.work.course, "draining", {})).do(self.undo)

    def die(self, pid: int) -> None:
        """Ends a process: its keeper and its workers let go of its memory at once."""
        self.dead.add(pid)
        self.target(pid).process.end()
        self.keeper.forget(pid)
        self.worker.forfeit(f"{pid}.1")
        self.agents[pid].fails = [(step, PeerGone("it has ended")) for step in ("hand_over", "give", "map")]

    def close(self) -> None:
        for target in self.targets:
            target.spare.close()
        self.keeper.close()
        self.worker.kept.close()
        for fd in self.fds:
            os.close(fd)
