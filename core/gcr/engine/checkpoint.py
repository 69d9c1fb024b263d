"""A checkpoint: PREPARE, QUIESCE, HAND OVER, FREEZE beside DRAIN, STAGE, JOURNAL, COMMIT (DESIGN §3).

Up to the journal's decision every step pushes its undo before it begins; after it nothing is taken back any more.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from gcr.daemon.peers import WorkerPeer
from gcr.engine.node import Course, Node
from gcr.engine.side_by_side import side_by_side
from gcr.engine.target import Target, quietly
from gcr.errors import PeerGone
from gcr.journal import DecisionRecord, ProcessDecision
from gcr.seqpacket import close_all
from gcr.states import State, Strategy
from gcr.transaction import Transaction

BALLAST_FACTOR = 1.1  # the driver's own needs at restore, measured before the freeze, and some more
VRAM_GONE_WITHIN = 5.0
VRAM_POLL = 0.002


@dataclass(slots=True)
class Checkpoint:
    job: str
    targets: Sequence[Target]
    node: Node
    course: Course
    data_only: bool = False
    drained: dict[tuple[int, str], dict[str, float]] = field(default_factory=dict)
    before: dict[tuple[int, str], int] = field(default_factory=dict)  # bytes the device counts, before anything
    after: dict[tuple[int, str], int] = field(default_factory=dict)
    decision: DecisionRecord | None = None

    def run(self) -> None:
        with Transaction(self.job) as undo:
            self._prepare(undo)
            self._quiesce(undo)
            self._hand_over(undo)
            self._freeze_and_drain(undo)
            self._stage(undo)
            self._decide()
            undo.commit()
        self._commit()

    # ---- up to the decision -----------------------------------------------------------------------------------

    def _prepare(self, undo: Transaction) -> None:
        self.course.tell("preparing")
        self.course.left(self.node.config.prepare_s)
        for target in self.targets:
            undo.push("export", target.forget_exports)
            undo.push("prepare", partial(self._run_on, target))
            target.process.strategy = Strategy.DATA_ONLY if self.data_only else Strategy.HANDOFF
        side_by_side(target.export_new for target in self.targets)
        for target in self.targets:
            target.process.move(State.PREPARED)
        self._reserve()
        self.course.mark("prepared")

    def _reserve(self) -> None:
        """Room on the host, before anything stops. Raises NoRoom."""
        for target in self.targets:
            for device, size in target.bytes_by_device.items():
                worker = target.worker(device)
                worker.reserve(target.hold, target.owner, size)
                self.before[target.pid, device] = worker.bytes_of(target.pid)

    def _run_on(self, target: Target) -> None:
        """Undo of everything up to QUIESCE: the gate opens, the exports are nobody's."""
        target.resume()
        target.process.state = State.RUNNING

    def _quiesce(self, undo: Transaction) -> None:
        self.course.tell("stopping")
        limit = self.course.left(self.node.config.quiesce_s)
        self.course.mark("stop")
        pulse = self.node.config.pulse_ms
        side_by_side(partial(t.process.agent.quiesce, t.transaction, limit, pulse) for t in self.targets)
        for target in self.targets:
            target.process.move(State.QUIESCED)
        self.course.mark("quiesced")

    def _hand_over(self, undo: Transaction) -> None:
        self.course.left(self.node.config.prepare_s)
        for target in self.targets:
            undo.push("hand over", partial(self._map_back, target))
        side_by_side(partial(self._hand_over_one, target) for target in self.targets)
        self.course.mark("handed_over")

    def _hand_over_one(self, target: Target) -> None:
        target.export_new()
        target.hand_over()
        target.process.move(State.HANDED_OVER)
        target.mappings = target.process.agent.mappings(target.transaction)

    def _map_back(self, target: Target) -> None:
        target.map_back()
        target.process.state = State.QUIESCED

    def _freeze_and_drain(self, undo: Transaction) -> None:
        steps = [partial(self._drain, target) for target in self.targets]
        if not self.data_only:
            for target in self.targets:
                undo.push("freeze", partial(self._thaw, target))
            steps += [partial(self._freeze, target) for target in self.targets]
        side_by_side(steps)
        self.course.left(self.node.config.stage_s)

    def _freeze(self, target: Target) -> None:
        target.freeze(self.course.left(self.node.config.control_s))
        target.process.moved_to_frozen()
        self.course.mark("frozen")

    def _thaw(self, target: Target) -> None:
        target.thaw(self.node.config.control_s)
        target.process.state = State.HANDED_OVER

    def _drain(self, target: Target) -> None:
        limit = self.course.left(self.node.config.drain_s)
        side_by_side(partial(self._drain_device, target, worker, limit) for worker in target.workers())
        target.process.moved_to_drained()
        self.course.mark("drained")

    def _drain_device(self, target: Target, worker: WorkerPeer, limit: float) -> None:
        told = partial(self._told, target)
        done = worker.drain(target.hold, target.owner, limit, told)
        expected = [i for i, device in target.exported.items() if device == worker.device]
        if done["handles"] != len(expected) or done["bytes"] != target.bytes_by_device[worker.device]:
            raise PeerGone(f"the worker of {worker.device} copied {done['bytes']} bytes, not all there are")
        self.drained[target.pid, worker.device] = done

    def _told(self, target: Target, report: dict[str, object]) -> None:
        self.course.tell("draining", **report)

    def _stage(self, undo: Transaction) -> None:
        """Whoever dies from here on, two others still hold the bytes: the target itself and its keeper."""
        for target in self.targets:
            undo.push("stage", partial(self._unstage, target))
            self._stage_one(target)
        self.course.mark("staged")

    def _stage_one(self, target: Target) -> None:
        fds: list[int] = []
        try:
            for worker in target.workers():
                fds += worker.seal(target.hold, self._about(target))
            target.process.agent.stage(target.transaction, fds)
            self._keep_staged(target, fds)
        finally:
            close_all(fds)

    def _keep_staged(self, target: Target, fds: Sequence[int]) -> None:
        """If the supervisor dies here its escrow is gone and no way leads back: but the next keeper can stage."""
        try:
            target.keeper().stage(target.pid, fds, 0)
        except PeerGone:
            target.keeper().stage(target.pid, fds, 0)

    def _about(self, target: Target) -> dict[str, object]:
        identity = target.process.identity
        rows = [[m.id, m.address, m.offset, m.size, m.read_devices, m.write_devices] for m in target.mappings]
        return {
            "job": self.job,
            "pid": identity.pid,
            "start_time": identity.start_time,
            "transaction": target.transaction,
            "ordinals": dict(target.process.uuids),
            "mappings": rows,
        }

    def _unstage(self, target: Target) -> None:
        quietly("unstage", lambda: target.keeper().unstage_all(target.pid))
        target.process.agent.drop(target.transaction)

    def _decide(self) -> None:
        self.course.left(self.node.config.stage_s)
        decision = self._decision()
        self.node.journal.decide(decision)
        self.decision = decision
        self.course.mark("decided")

    def _decision(self) -> DecisionRecord:
        first = self.targets[0]
        kind = "data_only" if self.data_only else "checkpoint"
        processes = tuple(self._record(target) for target in self.targets)
        return DecisionRecord(
            job=self.job,
            transaction=first.transaction,
            kind=kind,
            decided_at=time.time(),
            processes=processes,
            backend=first.world.backend,
            simulated=first.world.simulated,
            environment=dict(first.world.environment),
        )

    def _record(self, target: Target) -> ProcessDecision:
        identity = target.process.identity
        ballast = {device: self._ballast(target, device) for device in target.bytes_by_device}
        target.process.ballast_by_device = ballast
        target.process.bytes_by_device = dict(target.bytes_by_device)
        target.process.transaction = target.transaction
        return ProcessDecision(identity.pid, identity.start_time, dict(target.bytes_by_device), ballast)

    def _ballast(self, target: Target, device: str) -> int:
        """What the driver had for itself; never less than an earlier checkpoint found."""
        own = self.before[target.pid, device] - target.bytes_by_device[device]
        known = target.process.ballast_by_device.get(device, 0)
        return max(known, int(max(0, own) * BALLAST_FACTOR))

    # ---- after it ---------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        """Every descriptor of device memory is closed, everywhere; then the device itself is asked."""
        side_by_side(partial(self._let_go, target) for target in self.targets)
        for target in self.targets:
            if target.process.state != State.EXITED:  # one that died after the decision stops no other
                target.process.move(State.DATA_SUSPENDED if self.data_only else State.SUSPENDED)
        self._wait_for_vram()
        self.course.mark("vram_free")

    def _let_go(self, target: Target) -> None:
        for worker in target.workers():
            quietly("release", partial(worker.release, target.hold))
        quietly("drop", lambda: target.keeper().drop(target.pid))
        target.spare.close()
        self.course.reach("committed_one")

    def _wait_for_vram(self) -> None:
        """Until the device counts nothing (`--data-only`: only the context) of the targets, or the patience ends."""
        end = time.monotonic() + VRAM_GONE_WITHIN
        while self._still_held() and time.monotonic() < end:
            time.sleep(VRAM_POLL)

    def _still_held(self) -> bool:
        held = [self._holds(target, worker) for target in self.targets for worker in target.workers()]
        return any(held)

    def _holds(self, target: Target, worker: WorkerPeer) -> bool:
        key = target.pid, worker.device
        try:
            self.after[key] = worker.bytes_of(target.pid)
        except PeerGone:  # it holds nothing any more; what is the process's own, the control helper sees as well
            self.after[key] = target.control.inspect(target.pid).bytes_by_device.get(worker.device, 0)
        floor = self.before[key] - target.bytes_by_device[worker.device] if self.data_only else 0
        return self.after[key] > max(0, floor)
