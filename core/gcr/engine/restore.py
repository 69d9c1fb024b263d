"""A restore: room first, then data beside control state, then the same addresses, then the gates (docs/design.md).

Until every process is mapped and its data is back, a failure suspends the job again as it was: the arena is not
touched before the very end. Data from an image comes before the control state (inflow.py).
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.engine.agent_control import refuse_shared
from gcr.engine.copyout import AgentCopy, StagedCopy, refuse_without_room, short_on, unexportable
from gcr.engine.departed import depart
from gcr.engine.inflow import Imaged, Inflow
from gcr.engine.node import Course, Node, decide
from gcr.engine.progress import Meter
from gcr.engine.side_by_side import side_by_side
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.transaction import Transaction
from gcr.errors import DeadlinePassed, DriverGone, Lost, NoRoom, PeerGone
from gcr.job.journal import DecisionRecord, ProcessDecision
from gcr.job.moves import Moves, moved
from gcr.job.states import State
from gcr.peers.worker import WorkerPeer
from gcr.processes import alive
from gcr.protocol.seqpacket import close_all
from gcr.protocol.wire import FrameType

AGENT_BACK_S = 5.0  # an agent that lost its connection has it again within one
POLL = 0.02


class Restore(Struct):
    job: str
    targets: Sequence[Target]
    decision: DecisionRecord
    node: Node
    course: Course
    image: Imaged | None = None  # to come back with, instead of what was staged
    cold: bool = False
    streamed: bool = False  # bytes came from the image, and were nowhere whole in host memory
    adrift: set[int] = field(default_factory=set)  # pids that an undo did not suspend again: recovery does
    refilled: dict[tuple[int, str], dict[str, float]] = field(default_factory=dict)

    @property
    def data_only(self) -> bool:
        return self.decision.kind == "data_only"

    def run(self) -> None:
        try:
            with Transaction(self.job) as undo:
                self._begin(undo)
                self._make_room(undo)
                if self.image:
                    self._stream(self.image)
                self._bring_back(undo)
                self._map()
                self._decide()
                undo.commit()
        except Lost:
            for target in self.targets:
                target.process.settle(State.LOST)
            raise
        finally:
            for target in self.targets:
                target.forget_copy()
        self.finish()

    def _begin(self, undo: Transaction) -> None:
        for target in self.targets:
            target.process.move(State.RESTORING)
            undo.push("restoring", partial(self._suspended_again, target))

    def _suspended_again(self, target: Target) -> None:
        if not target.process.departed and target.pid not in self.adrift:
            target.process.take_back("restore")

    def _make_room(self, undo: Transaction) -> None:
        """Physical memory for everything and ballast for the driver, or a refusal: the target is untouched."""
        self.course.tell("making room")
        self.course.left(self.node.config.prepare_s)
        for target in self.targets:
            self._discard(target)  # what an attempt whose undo did not reach the agent has left there
            if target.keeps_context and not self.data_only:
                for device in target.bytes_by_device:
                    self.node.leave(device)
                refuse_shared(target.control, target.pid, target.bytes_by_device, self.node.who)
            if not target.bytes_by_device:  # a context and no memory: nothing was staged
                continue
            self._send_copies(target)
            if self._agent_must_copy(target) or not self._create(undo, target):
                target.copy = StagedCopy.of(self.image.whole(target.pid) if self.image else target.staged())
        self._refuse_without_room()
        self.course.mark("room")

    def _agent_must_copy(self, target: Target) -> bool:
        """No worker can have a context, or hand on what it makes, or the process take it in."""
        devices = sorted(target.bytes_by_device)
        self.cold = self.cold or any(self.node.warm_worker(target.world, device) is None for device in devices)
        flags = target.process.look().status.flags
        return unexportable(flags) or target.comes_to_hidden() or not all(map(target.attach, devices))

    def _create(self, undo: Transaction, target: Target) -> bool:
        """Room made by the workers; False when there is none beside their own contexts, which they gave back then."""
        try:
            for worker in target.workers():
                undo.push("create", partial(self._uncreate, target, worker))
                self._entrust(target, worker)
            for worker in target.workers():
                self._create_one(target, worker)
        except NoRoom:
            if not target.process.copied_out or not target.without_contexts():  # else there was room for them before
                raise
            return False
        return True

    def _create_one(self, target: Target, worker: WorkerPeer) -> None:
        """No restore is refused for want of room that a copy of ours takes. Raises NoRoom."""
        ballast = self._ballast(target, worker.device)
        try:
            worker.create(target.hold, ballast)
        except NoRoom:
            self.node.give_up_snapshots([worker.device])
            with short_on(worker.device):
                worker.create(target.hold, ballast)

    def _send_copies(self, target: Target) -> None:
        """To the workers of other devices, from the process's own: whoever has them now lets go of them."""
        for device in target.process.bytes_by_device:
            worker = self.node.warm_worker(target.world, device) if device in target.moves else None
            if worker:
                worker.surrender(target.hold)

    def _ballast(self, target: Target, device: str) -> int:
        return 0 if self.data_only else target.ballast_by_device.get(device, 0)

    def _refuse_without_room(self) -> None:
        """Where no worker holds the room, nobody can: it is looked at, as late as possible."""
        needs: Counter[str] = Counter()
        for target in self.targets:
            devices = {*target.bytes_by_device, *target.ballast_by_device}
            for device in devices if target.copy is not None else devices - {*target.bytes_by_device}:
                needs[device] += target.bytes_by_device.get(device, 0) + self._ballast(target, device)
        if +needs:
            self.node.give_up_snapshots(needs)
            refuse_without_room(needs, self.targets[0].free_bytes(needs))

    def _entrust(self, target: Target, worker: WorkerPeer) -> None:
        """A process's sealed table and segments, to a worker that does not have them."""
        if self.image or self._elsewhere(target, worker):
            worker.surrender(target.hold)  # whatever it knows of the process is of another device, or in no image
        elif worker.knows(target.hold):
            return
        fds = self.image.tables(target.pid) if self.image else target.staged()
        try:
            worker.reclaim(target.hold, target.owner, target.left(worker.device), fds)
        finally:
            close_all(fds)

    def _uncreate(self, target: Target, worker: WorkerPeer) -> None:
        anew = self.image or self._elsewhere(target, worker)
        quietly("uncreate", partial(worker.surrender if anew else worker.release, target.hold))

    @staticmethod
    def _elsewhere(target: Target, worker: WorkerPeer) -> bool:
        return target.left(worker.device) != worker.device

    def _stream(self, image: Imaged) -> None:
        """The data is on the device, and right, before anything of a process is touched."""
        inflow = Inflow(image, self.course, self.node.config.slot_bytes, self.node.config.drain_s)
        inflow.run([(target, worker) for target in self._handed_on() for worker in target.workers()])
        self.refilled |= inflow.done
        self.streamed = bool(inflow.done)
        self.course.mark("loaded")

    def _handed_on(self) -> Sequence[Target]:
        """Those whose memory the workers make."""
        return [target for target in self.targets if target.copy is None]

    def _bring_back(self, undo: Transaction) -> None:
        """Data to the device, control state to the process, physical memory to its addresses: all at once."""
        self.course.left(self.node.config.drain_s)
        for target in self.targets:
            if not self.data_only:
                undo.push("thaw", partial(self._take_back, target, self._freeze_again))
            undo.push("map", partial(self._take_back, target, self._discard))
        sizes = {(target.pid, device): n for target in self.targets for device, n in target.bytes_by_device.items()}
        sizes = {copy: n for copy, n in sizes.items() if copy not in self.refilled}
        meter = Meter(self.course, "refilling", sizes)
        if sizes:
            meter.start()
        steps: list[Callable[[], None]] = []
        for target in self.targets:
            workers = target.workers() if target.copy is None and not self.image else ()
            steps += [partial(self._refill, target, worker, meter) for worker in workers]
            steps.append(partial(self._reenter, target, meter))
        side_by_side(steps)
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
            target.control_state.thaw(self.node.config.control_s)
            self.course.marks["control_s"] = max(self.course.marks.get("control_s", 0.0), time.monotonic() - began)
        if target.copy is None:
            target.imports.give_from_workers(keep=True)
        else:
            self._copy_in(target, target.copy, meter)

    def _copy_in(self, target: Target, staged: StagedCopy, meter: Meter) -> None:
        """Control state first: a driver that finds too little room for itself never gives the process back."""
        target.imports.create(staged.sizes())
        self.course.mark("created")
        copy = AgentCopy(
            target.process.agent,
            target.transaction,
            staged,
            tell=lambda left, done: meter.at((target.pid, target.moves.get(left, left)), {"bytes": done}),
            check=partial(self.course.left, self.node.config.drain_s),
        )
        seconds = copy.run(FrameType.COPY_IN, self.course.left(self.node.config.drain_s))
        for device, size in moved(copy.moved, target.moves).items():
            self.refilled[target.pid, device] = {"bytes": size, "seconds": seconds}
        self.course.mark("refilled")

    def _take_back(self, target: Target, step: Callable[[Target], object]) -> None:
        if target.process.departed:
            return
        try:
            step(target)
        except DriverGone:
            depart(target)
        except BaseException:
            self.adrift.add(target.pid)
            raise

    def _freeze_again(self, target: Target) -> None:
        """Not with memory that came back and could not be discarded: a driver never gives such a process back."""
        self._discard(target)
        target.control_state.freeze_again(self.node.config.control_s)

    def _discard(self, target: Target) -> None:
        """Only if the control state is back: a frozen agent has mapped nothing and must not be asked to unmap."""
        if not target.process.agent.frozen():
            target.process.agent.discard(target.transaction)
        target.imports.given_back.clear()
        quietly("drop", lambda: target.keeper().drop(target.pid))

    def _map(self) -> None:
        self.course.left(self.node.config.prepare_s)
        for target in self.targets:
            if target.moves:
                target.process.agent.moved(target.transaction, target.moves)
        side_by_side(partial(target.process.agent.map, target.transaction) for target in self.targets)
        self.course.mark("mapped")

    def _decide(self) -> None:
        """From here on the job runs, where it is now: a successor of this daemon opens the gates."""
        moves = {target.pid: target.moves for target in self.targets}
        processes = tuple(_come_back(known, moves.get(known.pid, {})) for known in self.decision.processes)
        decided = replace(self.decision, kind="restored", processes=processes)
        decide(self.node.journal, decided)
        self.decision = decided
        for target in self.targets:
            target.process.runs_on(target.moves)
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
        """A program may close the connection of its agent at any time; here it would wait for ever for its gate."""
        end = time.monotonic() + AGENT_BACK_S
        while not self._opened(target):
            if not alive(target.process.identity) or time.monotonic() > end:
                raise PeerGone(f"process {target.pid} is gone, or its agent is")
            time.sleep(POLL)
        target.process.move(State.RUNNING)
        target.process.copied_out = False
        self.course.reach("opened_one")

    def _opened(self, target: Target) -> bool:
        try:
            target.resume()
        except (PeerGone, DeadlinePassed):
            return False
        return True

    def _tidy(self, target: Target) -> None:
        for device in target.bytes_by_device:
            worker = self.node.warm_worker(target.world, device)
            if worker:
                quietly("forget the copy", partial(worker.forget_copy, target.hold))
        quietly("drop", lambda: target.process.agent.drop(target.transaction))
        quietly("unstage", lambda: target.keeper().unstage_all(target.pid))


def _come_back(known: ProcessDecision, moves: Moves) -> ProcessDecision:
    size, ballast = moved(known.bytes, moves), moved(known.ballast, moves)
    return replace(known, bytes=size, ballast=ballast, now={}, tried=None)
