"""A checkpoint: PREPARE, QUIESCE, HAND OVER, FREEZE beside DRAIN, STAGE, JOURNAL, COMMIT (docs/design.md).

Up to the journal's decision every step pushes its undo before it begins; after it nothing is taken back any more.

A live one copies everything between PREPARE and QUIESCE, while the program runs, and drains what has changed since. For
one that leaves the program running see engine/glance.py, for one without room on the host engine/streaming.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from gcr.engine.admit import refuse_nothing_to_move
from gcr.engine.ballast import Room, WayBack
from gcr.engine.copyout import AgentCopy, StagedCopy
from gcr.engine.count import DeviceCount, refuse_a_part
from gcr.engine.decision import decision_on
from gcr.engine.departed import depart
from gcr.engine.live import copy_live, sizes_of
from gcr.engine.node import Course, Node, decide, give_up, intend
from gcr.engine.progress import Meter
from gcr.engine.rehome import close_books
from gcr.engine.sealing import about, seal
from gcr.engine.side_by_side import ALL, side_by_side
from gcr.engine.standing import map_back, refuse_as_left
from gcr.engine.streaming import Outlet, Stream, without_room
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.transaction import Transaction
from gcr.errors import DriverGone, NoDescriptors, NoRoom, PeerGone
from gcr.job.journal import DecisionRecord, KeptImage, ProcessDecision, text_of
from gcr.job.placement import Placement
from gcr.job.states import State, Way
from gcr.peers.worker import WorkerPeer
from gcr.protocol.seqpacket import close_all
from gcr.protocol.wire import FrameType

CATCHING_UP = 5  # times at most, with a job that makes more meanwhile
BALLAST_FACTOR = 1.1  # the driver's own needs at restore, measured before the freeze, and some more


@dataclass(slots=True)
class Checkpoint:
    job: str
    targets: Sequence[Target]
    node: Node
    course: Course
    data_only: bool = False
    live: bool = False
    paranoid: bool = False  # what hashes say to be equal is compared byte by byte
    may_stop: Callable[[], object] = lambda: None  # asked before anything stops; raises what speaks against it
    outlet: Outlet | None = None  # what goes straight to an image where the host has no room for it
    stream: Stream | None = None
    kept_in: KeptImage | None = None  # the bytes are there alone
    drained: dict[tuple[int, str], dict[str, float]] = field(default_factory=dict)
    copied_live: int = 0  # bytes
    count: DeviceCount = field(init=False)
    decision: DecisionRecord | None = None
    room: Room = field(init=False)
    ways_back: dict[int, WayBack] = field(default_factory=dict)  # by pid
    left: dict[int, NoDescriptors | NoRoom] = field(default_factory=dict)  # by pid: why it could not be brought back
    out: set[int] = field(default_factory=set)  # pids whose memory is with us alone: nobody of us lets go of it

    def __post_init__(self) -> None:
        self.count = DeviceCount(self.targets, self.data_only)
        self.room = Room(self.targets)

    @property
    def snapshot_bytes(self) -> int:
        """What was copied within the devices at the cut."""
        return int(sum(one.get("snapshot", 0) for one in self.drained.values()))

    def run(self) -> None:
        try:
            self._up_to_the_decision()
            self._commit()
        except Exception as error:
            refuse_as_left(self.job, error, self.left, [target for target in self.targets if target.pid in self.out])
            raise
        finally:
            for target in self.targets:
                target.forget_copy()
            if self.stream:
                self.stream.close()

    def _up_to_the_decision(self) -> None:
        with Transaction(self.job) as undo:
            undo.push("image", self._withdraw)  # last: a disk that hangs is not to hold up the job
            self._prepare(undo)
            if self.live:
                self.copied_live = copy_live(self.targets, self.course, self.node.config.drain_s)
            self._quiesce(undo)
            meter = self._hand_over(undo)
            self._freeze_and_drain(undo, meter)
            self._stage(undo)
            if self.stream:
                self._write_out(undo, self.stream.outlet)
            self._decide()
            undo.commit()

    def _withdraw(self) -> None:
        if self.stream and not self.decision:  # what the record names stays, whatever went wrong after it
            self.stream.outlet.withdraw()

    # ---- up to the decision -----------------------------------------------------------------------------------

    def _prepare(self, undo: Transaction) -> None:
        self.course.tell("preparing")
        self.course.left(self.node.config.prepare_s)
        for target in self.targets:
            undo.push("export", partial(self._forget_exports, target))
            undo.push("prepare", partial(self._run_on, target))
            target.process.way = self._way
            target.process.placement = Placement()  # it runs: this checkpoint counts from where it is
        side_by_side(target.exports.choose_strategy for target in self.targets)
        side_by_side(target.exports.export_new for target in self.targets)
        if self.data_only:
            refuse_nothing_to_move(self.targets)
        for target in self.targets:
            target.process.move(State.PREPARED)
        self._reserve()
        self.course.mark("prepared")

    def _reserve(self) -> None:
        """Room on the host, before anything stops. Raises NoRoom."""
        try:
            self._take_room()
        except NoRoom as short:
            self.stream = self._stream(short)
        for target in self.targets:
            self.count.look_before(target)
        if not self.data_only:
            self.room.look()
        self.may_stop()
        if self.stream:
            self.stream.outlet.prepare(self.targets)

    def _take_room(self) -> None:
        for target in self.targets:
            for device, size in target.bytes_by_device.items():
                target.worker(device).reserve(target.hold, target.owner, size)

    def _stream(self, short: NoRoom) -> Stream:
        """The way without room for all. Raises NoRoom where there is none either."""
        copies = any(target.process.copied_out for target in self.targets)
        if self.outlet is None or self.live or copies:
            raise without_room(short, self.outlet is not None, self.live, copies)
        stream = Stream(self.outlet, self.course, self.node.config.slot_bytes, self.node.config.drain_s)
        stream.reserve(self.targets)
        message = f"{short.message}: straight to the image, through {stream.ring_bytes >> 20} MiB"
        self.course.tell("streaming", message=message)
        return stream

    def _forget_exports(self, target: Target) -> None:
        if target.pid in self.left:  # its copy is all there is
            return
        if target.pid in self.out:
            target.exports.entrust_spares()  # to its keeper, for whoever brings it back
        else:
            target.forget_exports()

    def _run_on(self, target: Target) -> None:
        """Undo of everything up to QUIESCE: the gate opens, the exports are nobody's."""
        if not target.process.ended and target.pid not in self.left and target.pid not in self.out:
            target.resume()
            target.process.take_back("quiesce")
            target.process.take_back("prepare")

    def _quiesce(self, undo: Transaction) -> None:
        self.course.tell("stopping")
        self._catch_up()
        limit = self.course.left(self.node.config.quiesce_s)
        self.course.mark("stop")
        pulse = self.node.config.pulse_ms
        steps = [partial(t.process.agent.quiesce, t.transaction, limit, pulse) for t in self.targets]
        side_by_side(steps, ALL)  # the work of one process may wait for that of another
        for target in self.targets:
            target.process.move(State.QUIESCED)
        self.course.mark("quiesced")

    def _catch_up(self) -> None:
        """With what the job made since PREPARE, and while that was done: neither it nor its room on the host is to cost
        a standstill."""
        for _ in range(CATCHING_UP):
            self.course.left(self.node.config.prepare_s)
            made = sum(side_by_side(target.exports.export_new for target in self.targets))
            if not self.stream:
                self._take_room()
            if made <= self.node.config.batch:
                return

    def _hand_over(self, undo: Transaction) -> Meter:
        """Returns what tells of the transfer that begins."""
        self.course.left(self.node.config.prepare_s)
        side_by_side(partial(self._close_books, target) for target in self.targets)
        meter = Meter(self.course, "draining", sizes_of(self.targets))
        for target in self.targets:
            if target.process.copied_out and self.stream:
                raise NoRoom(f"process {target.pid} must copy by itself, for which there is no room", missing=None)
            if target.process.copied_out:
                undo.push("stage", partial(self._unstage, target))  # after the mapping back, which may need the copy
            undo.push("hand over", partial(self._map_back, target))
        side_by_side(partial(self._hand_over_one, target, meter) for target in self.targets)
        self.course.mark("handed_over")
        return meter

    def _close_books(self, target: Target) -> None:
        """What was made up to the stop is exported, too; from here on nothing changes any more."""
        target.exports.export_new()
        close_books(target)
        copies = target.process.copied_out  # else a context that stays is there with --data-only alone
        stays = self.data_only or (copies and target.keeps_context)
        self.count.look_before(target, again=stays)  # what the context has is known only once the program stands

    def _hand_over_one(self, target: Target, meter: Meter) -> None:
        if target.process.copied_out:
            self._copy_out(target, meter)
        target.hand_over()
        target.process.move(State.HANDED_OVER)

    def _copy_out(self, target: Target, meter: Meter) -> None:
        """Every byte is in the arena, and staged, before any is released."""
        target.copy = staged = StagedCopy.of(seal(target, lay_out=True))
        meter.start()
        copy = AgentCopy(
            target.process.agent,
            target.transaction,
            staged,
            tell=lambda device, done: meter.at((target.pid, device), {"bytes": done}),
            check=partial(self.course.left, self.node.config.drain_s),
        )
        seconds = copy.run(FrameType.COPY_OUT, self.course.left(self.node.config.drain_s))
        for device, size in copy.moved.items():
            self.drained[target.pid, device] = {"bytes": size, "seconds": seconds}
        self.course.mark("copied_out")
        self._keep(target, staged.fds)

    def _map_back(self, target: Target) -> None:
        if target.process.ended:
            return
        self.out.add(target.pid)
        try:
            map_back(target)
        except DriverGone:
            depart(target)
            self.out.remove(target.pid)
            return
        except (NoDescriptors, NoRoom) as short:
            if target.copy is None:
                raise
            self._leave(target, short)
            return
        self.out.remove(target.pid)
        target.process.take_back("hand_over")

    def _leave(self, target: Target, short: NoDescriptors | NoRoom) -> None:
        """Its memory was released, and somebody else took the room: it stays what it is, suspended, and says so."""
        target.process.agent.discard(target.transaction)
        quietly("drop", lambda: target.keeper().drop(target.pid))
        target.spare.close()
        self.out.remove(target.pid)
        self.left[target.pid] = short
        others = self.decision.processes if self.decision else ()
        self._journal("data_only", (*others, self._record(target)))
        target.process.way = Way.DATA_ONLY
        target.process.settle(State.DATA_SUSPENDED)

    def _freeze_and_drain(self, undo: Transaction, meter: Meter) -> None:
        meter.start()
        if self.stream:
            for target in self.targets:
                self.stream.open(target, about(target))
        steps: list[Callable[[], None]] = []
        for target in self.targets:
            undo.push("drain", partial(target.process.take_back, "drain"))
            steps.append(partial(self._drain, target, meter))
            if not self.data_only:
                undo.push("freeze", partial(self._thaw, target))
                steps.append(partial(self._freeze, target))
        if self.stream:
            steps = [partial(self.stream.or_stop, step) for step in steps]
        side_by_side(steps)
        self.course.left(self.node.config.stage_s)

    def _freeze(self, target: Target) -> None:
        if not target.keeps_context:
            self.count.look_without_data(target)
        target.control_state.freeze(self.course.left(self.node.config.control_s))
        if not target.process.copied_out:  # else there may be no context to hold it with
            sizes = {device: self._ballasts(target, device) for device in target.bytes_by_device}
            self.ways_back[target.pid] = WayBack(target, sizes)
            self.ways_back[target.pid].keep()
        target.process.advance("freeze")
        self.course.mark("frozen")

    def _thaw(self, target: Target) -> None:
        if way_back := self.ways_back.pop(target.pid, None):
            way_back.give()
        if target.process.ended:
            return
        target.control_state.thaw(self.node.config.control_s, undo=True)
        target.process.take_back("freeze")

    def _drain(self, target: Target, meter: Meter) -> None:
        limit = self.course.left(self.node.config.drain_s)
        workers = [] if target.process.copied_out else target.workers()
        side_by_side(partial(self._drain_device, target, worker, limit, meter) for worker in workers)
        target.process.advance("drain")
        self.course.mark("drained")

    def _drain_device(self, target: Target, worker: WorkerPeer, limit: float, meter: Meter) -> None:
        copy = target.pid, worker.device
        if self.stream:
            done = self.stream.drain(target, worker, partial(meter.at, copy))
        else:
            done = worker.drain(target.hold, target.owner, limit, partial(meter.at, copy), self.paranoid)
        expected = target.books.table.of_device(worker.device)
        if done["handles"] != len(expected) or done["bytes"] != sum(each.spec.size for each in expected):
            raise PeerGone(f"the worker of {worker.device} copied {done['bytes']} bytes, not all there are")
        self.drained[copy] = done
        meter.at(copy, done)

    def _stage(self, undo: Transaction) -> None:
        """Whoever dies from here on, two others still hold the bytes: the target itself and its keeper."""
        for target in self.targets:
            if not target.process.copied_out:
                undo.push("stage", partial(self._unstage, target))
                self._stage_one(target)
        self.course.mark("staged")

    def _stage_one(self, target: Target) -> None:
        fds = seal(target)
        try:
            self._keep(target, fds)
        finally:
            close_all(fds)

    def _keep(self, target: Target, fds: Sequence[int]) -> None:
        target.process.agent.stage(target.transaction, fds)
        self._keep_staged(target, fds)

    def _keep_staged(self, target: Target, fds: Sequence[int]) -> None:
        """If the supervisor dies here its escrow is gone and no way leads back: but the next keeper can stage."""
        try:
            target.keeper().stage(target.pid, fds, 0)
        except PeerGone:
            target.keeper().stage(target.pid, fds, 0)

    def _unstage(self, target: Target) -> None:
        if target.pid not in self.left and target.pid not in self.out:
            quietly("unstage", lambda: target.keeper().unstage_all(target.pid))
            quietly("drop", partial(target.process.agent.drop, target.transaction))

    def _write_out(self, undo: Transaction, outlet: Outlet) -> None:
        """The image is durable. A daemon that dies before the decision has left word of it."""
        undo.push("intent", partial(give_up, self.node.journal, self.job))  # before any process runs on
        self.kept_in = outlet.kept_in
        intended = decision_on(self.job, self.targets[0], self._kind, self._records(), self.kept_in)
        intend(self.node.journal, intended)
        outlet.finish(self.targets)
        self.course.mark("durable")

    def _decide(self) -> None:
        self.course.left(self.node.config.stage_s)
        self._journal(self._kind, self._records())
        self.course.mark("decided")

    @property
    def _way(self) -> Way:
        return Way.DATA_ONLY if self.data_only else Way.WHOLE

    @property
    def _kind(self) -> str:
        return "data_only" if self.data_only else "checkpoint"

    def _records(self) -> tuple[ProcessDecision, ...]:
        refuse_a_part({target.pid: target.books.table.bytes for target in self.targets}, self.drained)
        return tuple(self._record(target) for target in self.targets)

    def _journal(self, kind: str, processes: tuple[ProcessDecision, ...]) -> None:
        first = self.targets[0]
        decision = decision_on(self.job, first, kind, processes, self.kept_in)
        decide(self.node.journal, decision)
        self.decision = decision
        if decision.image:  # nothing else says where the bytes are
            quietly("note", lambda: first.keeper().note(text_of(decision).decode()))

    def _record(self, target: Target) -> ProcessDecision:
        identity = target.process.identity
        ballast = {device: self._ballast(target, device) for device in target.devices}
        target.process.ballast_by_device = ballast
        target.process.bytes_by_device = dict(target.bytes_by_device)
        target.process.transaction = target.transaction
        size, copied_out = dict(target.bytes_by_device), target.process.copied_out
        return ProcessDecision(identity.pid, identity.start_time, size, ballast, copied_out, stack=identity.stack)

    def _ballast(self, target: Target, device: str) -> int:
        """What the driver had for itself; never less than an earlier checkpoint found, unless there is no more room."""
        known, own = target.process.ballast_by_device.get(device, 0), self._own(target, device)
        return min(max(known, int(own * BALLAST_FACTOR)), own + self.room.spare(device))

    def _ballasts(self, target: Target, device: str) -> list[int]:
        """On a device that is full no more can be held than the driver has just given back."""
        return [self._ballast(target, device), self._own(target, device)]

    def _own(self, target: Target, device: str) -> int:
        return self.count.without_data.get((target.pid, device), 0)

    # ---- after it ---------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        """Every descriptor of device memory is closed, everywhere; then the device itself is asked."""
        side_by_side(partial(self._let_go, target) for target in self.targets)
        for target in self.targets:
            if target.process.state != State.EXITED:  # one that died after the decision stops no other
                target.process.move(State.DATA_SUSPENDED if self.data_only else State.SUSPENDED)
        self.count.wait()
        self.course.mark("vram_free")

    def _let_go(self, target: Target) -> None:
        if way_back := self.ways_back.pop(target.pid, None):
            way_back.settle()
        for worker in target.workers():
            quietly("release", partial(worker.release, target.hold))
            if self.stream:  # there is no copy with it that anybody could come back from
                quietly("give the ring back", partial(worker.forget_copy, target.hold))
        quietly("drop", lambda: target.keeper().drop(target.pid))
        target.spare.close()
        self.course.reach("committed_one")
