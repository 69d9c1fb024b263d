"""A restore: room first, then data beside control state, then the same addresses, then the gates (DESIGN §3).

Until every process is mapped and its data is back, a failure suspends the job again as it was: the arena is not
touched before the very end.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gcr.daemon.peers import WorkerPeer
from gcr.engine.copyout import AgentCopy, StagedCopy, refuse_without_room, unexportable
from gcr.engine.node import Course, Node, decide
from gcr.engine.progress import Meter
from gcr.engine.side_by_side import side_by_side
from gcr.engine.snapshot import refuse_shared
from gcr.engine.target import Target, quietly
from gcr.errors import Lost, NoRoom
from gcr.journal import DecisionRecord
from gcr.seqpacket import close_all
from gcr.states import State
from gcr.transaction import Transaction
from gcr.wire import FrameType


@dataclass(slots=True)
class Restore:
    job: str
    targets: Sequence[Target]
    decision: DecisionRecord
    node: Node
    course: Course
    cold: bool = False
    refilled: dict[tuple[int, str], dict[str, float]] = field(default_factory=dict)

    @property
    def data_only(self) -> bool:
        return self.decision.kind == "data_only"

    def run(self) -> None:
        suspended = State.DATA_SUSPENDED if self.data_only else State.SUSPENDED
        try:
            with Transaction(self.job) as undo:
                self._begin(undo, suspended)
                self._make_room(undo)
                self._bring_back(undo)
                self._map()
                self._decide()
                undo.commit()
        except Lost:
            for target in self.targets:
                target.process.state = State.LOST
            raise
        finally:
            for target in self.targets:
                target.forget_copy()
        self.finish()

    def _begin(self, undo: Transaction, suspended: State) -> None:
        for target in self.targets:
            target.process.move(State.RESTORING)
            undo.push("restoring", partial(_set_state, target, suspended))

    def _make_room(self, undo: Transaction) -> None:
        """Physical memory for everything and ballast for the driver, or a refusal: the target is untouched."""
        self.course.tell("making room")
        self.course.left(self.node.config.prepare_s)
        for target in self.targets:
            if target.keeps_context and not self.data_only:
                for device in target.bytes_by_device:
                    self.node.leave(device)
                refuse_shared(target.control, target.pid, target.bytes_by_device, self.node.who)
            if not target.bytes_by_device:  # a context and no memory: nothing was staged
                continue
            if self._agent_must_copy(target) or not self._create(undo, target):
                target.copy = StagedCopy.of(target.process.agent.unstage(target.transaction))
        self._refuse_without_room()
        self.course.mark("room")

    def _agent_must_copy(self, target: Target) -> bool:
        """No worker can have a context, or hand on what it makes."""
        devices = sorted(target.bytes_by_device)
        self.cold = self.cold or any(self.node.warm_worker(target.world, device) is None for device in devices)
        return unexportable(target.process.look().status.flags) or not all(map(target.attach, devices))

    def _create(self, undo: Transaction, target: Target) -> bool:
        """Room made by the workers; False when there is none beside their own contexts, which they gave back then."""
        try:
            for worker in self._workers(target):
                undo.push("create", partial(self._uncreate, target, worker))
                worker.create(target.hold, self._ballast(target, worker.device))
        except NoRoom:
            if not target.process.copied_out or not target.without_contexts():  # else there was room for them before
                raise
            return False
        return True

    def _ballast(self, target: Target, device: str) -> int:
        return 0 if self.data_only else target.process.ballast_by_device.get(device, 0)

    def _refuse_without_room(self) -> None:
        """Where no worker holds the room, nobody can: it is looked at, as late as possible."""
        needs: Counter[str] = Counter()
        for target in self.targets:
            devices = {*target.bytes_by_device, *target.process.ballast_by_device}
            for device in devices if target.copy is not None else devices - {*target.bytes_by_device}:
                needs[device] += target.bytes_by_device.get(device, 0) + self._ballast(target, device)
        if +needs:
            refuse_without_room(needs, self.targets[0].free_bytes(needs))

    def _workers(self, target: Target) -> list[WorkerPeer]:
        """The workers of a process, started and given its sealed table and segments if they know nothing of it."""
        found = []
        for device in sorted(target.bytes_by_device):
            worker = target.worker(device)
            if not worker.knows(target.hold):
                self._reclaim(target, worker)
            found.append(worker)
        return found

    def _reclaim(self, target: Target, worker: WorkerPeer) -> None:
        fds = target.process.agent.unstage(target.transaction)
        try:
            worker.reclaim(target.hold, target.owner, fds)
        finally:
            close_all(fds)

    def _uncreate(self, target: Target, worker: WorkerPeer) -> None:
        quietly("uncreate", partial(worker.release, target.hold))

    def _bring_back(self, undo: Transaction) -> None:
        """Data to the device, control state to the process, physical memory to its addresses: all at once."""
        self.course.left(self.node.config.drain_s)
        for target in self.targets:
            if not self.data_only:
                undo.push("thaw", partial(self._freeze_again, target))
            undo.push("map", partial(self._discard, target))
        sizes = {(target.pid, device): n for target in self.targets for device, n in target.bytes_by_device.items()}
        meter = Meter(self.course, "refilling", sizes)
        meter.start()
        steps = [partial(self._refill, t, w, meter) for t in self.targets if t.copy is None for w in t.workers()]
        side_by_side([*steps, *(partial(self._reenter, target, meter) for target in self.targets)])
        self.course.mark("back")

    def _refill(self, target: Target, worker: WorkerPeer, meter: Meter) -> None:
        copy = target.pid, worker.device
        done = worker.refill(target.hold, self.node.config.drain_s, partial(meter.at, copy))
        self.refilled[copy] = done
        meter.at(copy, done)
        self.course.mark("refilled")

    def _reenter(self, target: Target, meter: Meter) -> None:
        if not self.data_only:
            for worker in target.workers() if target.copy is None else ():
                worker.drop_ballast(target.hold)
            began = time.monotonic()
            target.thaw(self.node.config.control_s)
            self.course.marks["control_s"] = max(self.course.marks.get("control_s", 0.0), time.monotonic() - began)
        if target.copy is None:
            target.give_from_workers(keep=True)
        else:
            self._copy_in(target, target.copy, meter)

    def _copy_in(self, target: Target, staged: StagedCopy, meter: Meter) -> None:
        """Control state first: a driver that finds too little room for itself never gives the process back."""
        target.create(staged.sizes())
        self.course.mark("created")
        copy = AgentCopy(
            target.process.agent,
            target.transaction,
            staged,
            tell=lambda device, done: meter.at((target.pid, device), {"bytes": done}),
            check=partial(self.course.left, self.node.config.drain_s),
        )
        seconds = copy.run(FrameType.COPY_IN, self.course.left(self.node.config.drain_s))
        for device, size in copy.moved.items():
            self.refilled[target.pid, device] = {"bytes": size, "seconds": seconds}
        self.course.mark("refilled")

    def _freeze_again(self, target: Target) -> None:
        target.freeze_again(self.node.config.control_s)

    def _discard(self, target: Target) -> None:
        """Only if the control state is back: a frozen agent has mapped nothing and must not be asked to unmap."""
        if not target.process.agent.frozen():
            target.process.agent.discard(target.transaction)
        target.given_back.clear()
        quietly("drop", lambda: target.keeper().drop(target.pid))

    def _map(self) -> None:
        self.course.left(self.node.config.prepare_s)
        side_by_side(partial(target.process.agent.map, target.transaction) for target in self.targets)
        self.course.mark("mapped")

    def _decide(self) -> None:
        """From here on the job runs: a successor of this daemon opens the gates."""
        decide(self.node.journal, replace(self.decision, kind="restored"))
        self.course.reach("decided")

    def finish(self) -> None:
        """Open every gate; a process that died meanwhile stops no other."""
        for target in self.targets:
            quietly("resume", partial(self._open, target))
        self.course.mark("running")
        for target in self.targets:
            self._tidy(target)
        self.node.journal.forget(self.job)

    def _open(self, target: Target) -> None:
        target.process.agent.resume(target.transaction)
        target.process.state = State.RUNNING
        target.process.copied_out = False
        self.course.reach("opened_one")

    def _tidy(self, target: Target) -> None:
        for device in target.bytes_by_device:
            worker = self.node.warm_worker(target.world, device)
            if worker:
                quietly("forget the copy", partial(worker.forget_copy, target.hold))
        quietly("drop", lambda: target.process.agent.drop(target.transaction))
        quietly("unstage", lambda: target.keeper().unstage_all(target.pid))


def _set_state(target: Target, state: State) -> None:
    target.process.state = state
