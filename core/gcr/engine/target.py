"""One process of a job inside one transaction: its memory, its control state, and who keeps duplicates.

Ids, never addresses, cross the sockets. `_exports` is held while a batch of exports is passed on and while a free is,
so that a free never overtakes the handle it frees.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from threading import RLock

from msgspec import Struct, field

from gcr.control import ControlMeans, ControlPhase
from gcr.devices import uuid_text
from gcr.drain import HandleSpec
from gcr.engine import duplicates
from gcr.engine.copyout import AgentCopy, StagedCopy, create, unexportable
from gcr.engine.drive import ControlDrive, drive_of
from gcr.engine.node import Node, World
from gcr.engine.snapshot import AgentControl
from gcr.engine.tidying import let_go, quietly
from gcr.errors import DeadlinePassed, NoDescriptors, NoRoom, PeerGone, RolledBack, StagedGone, WrongState
from gcr.job.moves import Moves, moved
from gcr.job.process import Process
from gcr.job.tracking import NOTHING, AllocationTable, AllocationTracker, ReportedAllocations, ids_of, spec_of, specs_of
from gcr.memory.escrow import Escrow, Keeper, staged_with
from gcr.peers.control import ControlPeer
from gcr.peers.paging import Paging
from gcr.peers.worker import WorkerPeer
from gcr.protocol.agentwire import ExportBatch, HandleRecord, IdList, StatusReply
from gcr.protocol.seqpacket import close_all
from gcr.protocol.wire import AgentPhase, FrameType, HandleFlag

log = logging.getLogger("gcr.engine")


class Target(Struct):
    process: Process
    transaction: int
    node: Node
    world: World
    keeper: Callable[[], Keeper]
    reports: AllocationTracker = field(default_factory=lambda: ReportedAllocations(uuid_text))
    table: AllocationTable = NOTHING  # of what is handed over; closed before it is
    suspended: Mapping[str, int] = field(default_factory=dict)  # bytes by device of one whose shim reports nothing now
    moves: Moves = field(default_factory=dict)  # of a restore; everything else here goes by the devices to come back on
    spare: Escrow = field(default_factory=Escrow)  # the daemon's own duplicates, should the supervisor die on the way
    fresh: set[int] = field(default_factory=set)  # exported in this transaction, and exportable again
    imported: dict[int, tuple[str, int]] = field(default_factory=dict)  # by the process before: device and bytes
    unkept: dict[int, int] = field(default_factory=dict)  # imported, and in no keeper's hands: id and bytes
    given_back: set[int] = field(default_factory=set)  # imported by the process in this transaction
    copy: StagedCopy | None = None  # strategy `copyout`: every byte of it, from before it is released
    unexplained: dict[str, int] = field(default_factory=dict)  # by device: what nobody's books explained at the start
    _workers: dict[str, WorkerPeer] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)  # by device UUID: bytes the device counted at admission
    _held_before: dict[str, set[int]] = field(default_factory=dict)
    _after: int = 0
    _exports: RLock = field(default_factory=RLock)

    @property
    def pid(self) -> int:
        return self.process.identity.pid

    @property
    def hold(self) -> str:
        """The name under which workers keep this process's memory."""
        return self.process.hold

    @property
    def owner(self) -> str:
        return f"{self.process.job}/{self.pid}"

    def come_back(self, moves: Moves) -> None:
        """It is suspended, and to come back on these devices."""
        self.moves = moves
        self.suspended = moved(self.process.bytes_by_device, moves)

    def comes_to_hidden(self) -> bool:
        """Onto a device that the process does not see: a driver lets control state back there, but no memory in."""
        return any(device not in self.process.uuids.values() for device in self.bytes_by_device)

    def left(self, device: str) -> str:
        """The device that it left, of one to come back on."""
        return next((old for old, new in self.moves.items() if new == device), device)

    @property
    def generation(self) -> int:
        """As of when it was last looked at: only a restore changes it."""
        status = self.process.last_status or self.process.look()
        return status.status.generation

    @property
    def ballast_by_device(self) -> Mapping[str, int]:
        return moved(self.process.ballast_by_device, self.moves)

    @property
    def bytes_by_device(self) -> Mapping[str, int]:
        return self.suspended or self.reports.bytes_by_device()

    @property
    def control(self) -> "ControlPeer | AgentControl":
        """The vendor's helper; where only the process itself can save its control state, its agent through it."""
        helper = self.node.control(self.world)
        if helper.means is not ControlMeans.AGENT:
            return helper
        return AgentControl(helper, self.process, self.transaction)

    @property
    def keeps_context(self) -> bool:
        """What the runtime has for itself stays on the device, also while its control state is saved."""
        return self.control.means is ControlMeans.AGENT

    def worker(self, device: str) -> WorkerPeer:
        """The same one all through the transaction: one that took its place would hold nothing."""
        if device not in self._workers:
            self._workers[device] = self.node.worker(self.world, device)
        return self._workers[device]

    def workers(self) -> list[WorkerPeer]:
        return [self.worker(device) for device in sorted(self.bytes_by_device)]

    # ---- memory out -------------------------------------------------------------------------------------------

    def choose_strategy(self) -> None:
        """`copyout` where nothing can be exported, or a worker can have no context; of one that was looked at."""
        status = self.process.last_status
        assert status
        used = [self.reports.ordinals()[device.ordinal] for device in status.devices if device.handles]
        self.process.copied_out = unexportable(status.status.flags) or not all(self.attach(uuid) for uuid in used)
        if not self.process.copied_out:
            self.unexplained = {uuid: max(0, self.worker(uuid).counted(self.pid)[1]) for uuid in used}

    def attach(self, device: str) -> bool:
        """Whether the device's worker has a context, after a try."""
        return self.worker(device).attach(self.node.config.worker_start_s)

    def without_contexts(self) -> bool:
        """The workers give their contexts back, and with them the room these take; False: others need them."""
        try:
            for worker in self.workers():
                worker.release(self.hold)
                worker.detach()
        except WrongState:
            return False
        return True

    @property
    def devices(self) -> list[str]:
        """Where it has memory that we carry, or, by the device's own count, something of the driver's alone."""
        return sorted({*self.bytes_by_device, *self.counts})

    def counted_by_control(self, device: str) -> int:
        return self.control.inspect(self.pid).bytes_by_device.get(device, 0)

    def staged(self) -> list[int]:
        """The sealed tables and segments to come back from; the caller's.

        A program may have closed those of its agent: then they come from the keeper. Raises RolledBack.
        """
        try:
            return self.process.agent.unstage(self.transaction)
        except StagedGone as gone:
            log.warning("%s: its keeper is asked", gone)
            found = staged_with(self.keeper(), self.pid)
            if not found:
                raise
            return found

    def forget_copy(self) -> None:
        """The daemon's own descriptors of it."""
        if self.copy is not None:
            self.copy.close()
        self.copy = None

    def look(self) -> StatusReply:
        """Ask the process how things stand, and take it into the books. Raises Contradiction."""
        status = self.process.look()
        self.reports.apply(status)
        return status

    def export_again(self, ids: Sequence[int]) -> None:
        """Handles that could not leave before, and now can. Raises RolledBack where one cannot after all."""
        left, pages = sorted(ids), Paging(f"process {self.pid}, memory made anew", self.node.config.prepare_s)
        while left:
            with self._exports:
                limit = min(len(left), self.node.config.batch)
                batch, fds = self.process.agent.export(self.transaction, left[0] - 1, limit)
                try:
                    self._pass_on(*batch.only(left, fds))
                finally:
                    close_all(fds)
                if not batch.handles:
                    raise RolledBack(f"process {self.pid} did not hand out memory that it had made anew")
            pages.turn(batch.reply.last_id)
            left = [id for id in left if id > batch.reply.last_id]

    def export_new(self) -> int:
        """See that every handle made since the last call is with its worker and with the keeper; how many these are."""
        more, made = True, 0
        pages = Paging(f"process {self.pid}, exports", self.node.config.prepare_s, self._after)
        while more:
            with self._exports:
                batch, fds = self.process.agent.export(self.transaction, self._after, self.node.config.batch)
                try:
                    self._pass_on(batch, fds)
                finally:
                    close_all(fds)
                more, made = bool(batch.reply.more), made + len(batch.handles)
                self._after = max(self._after, batch.reply.last_id)
            if more:
                pages.turn(batch.reply.last_id)
        return made

    def _pass_on(self, batch: ExportBatch, fds: Sequence[int]) -> None:
        if any(h.device not in self.reports.ordinals() for h in batch.handles):
            self.look()
        self.reports.apply(batch)
        fresh = dict(zip((h.id for h in batch.handed), fds, strict=True))
        for id in fresh:
            self.imported.pop(id, None)
        if any(h.flags & HandleFlag.UNEXPORTABLE for h in batch.handles):
            self.process.copied_out = True
        for device in sorted({self._device(h) for h in batch.handles}):
            here = [h for h in batch.handles if self._device(h) == device]
            self._pass_on_fresh(device, [(h, fresh[h.id]) for h in here if h.id in fresh])
            kept = [h for h in here if h.flags & HandleFlag.KEPT]
            self.imported.update({h.id: (device, h.size) for h in kept})
            self._pass_on_kept(device, kept)

    def _device(self, handle: HandleRecord) -> str:
        return self.reports.ordinals()[handle.device]

    def _pass_on_fresh(self, device: str, fresh: Sequence[tuple[HandleRecord, int]]) -> None:
        if not fresh:
            return
        specs, fds = [spec_of(h) for h, _ in fresh], [fd for _, fd in fresh]
        self.fresh.update(spec.id for spec in specs)
        self.keeper().put(self.pid, [spec.id for spec in specs], fds)
        self._spare(specs, fds)
        if not self.process.copied_out:
            self.worker(device).adopt(self.hold, specs, fds)
        for spec in specs:
            self.unkept.pop(spec.id, None)

    def _spare(self, specs: Sequence[HandleSpec], fds: Sequence[int]) -> None:
        try:
            self.spare.put(self.pid, [spec.id for spec in specs], fds)
        except OSError as error:  # no descriptor left: the supervisor's duplicates are the ones that count
            log.info("job %s: process %d: no spare duplicates: %s", self.process.job, self.pid, error)

    def _pass_on_kept(self, device: str, kept: Sequence[HandleRecord]) -> None:
        """Handles that cannot be exported again: worker and keeper each make up for what the other lost."""
        if not kept or self.process.copied_out:  # what is copied needs no descriptor: it can be made anew
            return
        worker, keeper = self.worker(device), self.keeper()
        held, escrowed = self._held(device, worker), set(keeper.ids(self.pid))
        self.unkept.update({h.id: h.size for h in kept if h.id not in held and h.id not in escrowed})
        if missing := [h for h in kept if h.id not in held and h.id in escrowed]:
            self._with(keeper.take(self.pid, ids_of(missing)), partial(worker.adopt, self.hold, specs_of(missing)))
        if missing := [h for h in kept if h.id not in escrowed and h.id in held]:
            self._with(worker.export(self.hold, ids_of(missing)), partial(keeper.put, self.pid, ids_of(missing)))

    def _held(self, device: str, worker: WorkerPeer) -> set[int]:
        if device not in self._held_before:
            self._held_before[device] = worker.held(self.hold)
        return self._held_before[device]

    @staticmethod
    def _with(fds: Sequence[int], use: Callable[[Sequence[int]], object]) -> None:
        try:
            use(fds)
        finally:
            close_all(fds)

    def released(self, ids: Sequence[int]) -> None:
        """The program freed exported handles: everybody lets go before its free returns."""
        with self._exports:
            let_go(self.process, ids, self.node, self.world, self.keeper())
            self.spare.drop(self.pid, list(ids))
            self.reports.apply(IdList(self.transaction, tuple(ids)))
            self.fresh.difference_update(ids)
            for id in ids:
                self.imported.pop(id, None)
                self.unkept.pop(id, None)

    def close_books(self) -> None:
        """Reads the last of the books behind the closed gate, before anything is released. Raises Contradiction."""
        for page in self.process.agent.mappings(self.transaction):
            self.reports.apply(page)
        self.table = self.reports.table()

    def hand_over(self) -> None:
        """Raises PeerGone when the process released something else than the books say."""
        count = self.process.agent.hand_over(self.transaction)
        if count.count != len(self.table.allocations):
            raise PeerGone(f"process {self.pid} handed over {count.count} handles of {len(self.table.allocations)}")

    def forget_exports(self) -> None:
        """Undo of the exports, and of whatever was copied of them."""
        self.forget_memory()
        for worker in self.workers():
            quietly("forget the copy", partial(worker.forget_copy, self.hold))

    def forget_memory(self) -> None:
        """What the process can export again is nobody's; what was given back stays kept."""
        again = sorted(self.fresh - self.given_back)
        for worker in self.workers():
            quietly("forget", partial(worker.forget, self.hold, again))
        quietly("drop", lambda: self.keeper().drop(self.pid, again))
        self.spare.close()

    def entrust_spares(self) -> None:
        """What the keeper lost with its life, and the process cannot export again, is with its next keeper."""
        try:
            self._entrust_spares(self.keeper())
        except PeerGone:  # it dies just now; the next one is the daemon itself
            self._entrust_spares(self.keeper())
        except DeadlinePassed as error:  # it has them, and so have the workers
            log.warning("job %s: process %d: its keeper does not answer: %s", self.process.job, self.pid, error)
        self.spare.close()

    def _entrust_spares(self, keeper: Keeper) -> None:
        held = set(keeper.ids(self.pid))
        for ids in batched([i for i in self.spare.ids(self.pid) if i not in held], self.node.config.batch):
            self._with(self.spare.take(self.pid, ids), partial(keeper.put, self.pid, ids))

    # ---- memory back ------------------------------------------------------------------------------------------

    def map_back(self) -> None:
        """The inverse of `hand_over`, legal at any point of it: from the keeper, and what it lacks from the workers."""
        if self._phase() != AgentPhase.HANDED_OVER:
            return
        self._give_from_keeper()
        self._give_from_spare()
        if self.given_back < set(self.table.allocations):
            self.give_from_workers()
        if self.copy is not None:
            self._make_anew(self.copy, set(self.table.allocations) - self.given_back)
        self.process.agent.map(self.transaction)

    def _make_anew(self, copy: StagedCopy, missing: set[int]) -> None:
        """What nobody holds as memory any more comes back as a copy. Raises NoRoom."""
        if missing:
            self.create({id: size for id, size in copy.sizes().items() if id in missing})
            back = AgentCopy(self.process.agent, self.transaction, copy)
            back.run(FrameType.COPY_IN, self.node.config.drain_s, wanted=missing)

    def create(self, sizes: Mapping[int, int]) -> None:
        """New physical memory in the process, by handle. Raises NoRoom."""
        devices = self.bytes_by_device
        let_go = partial(self.node.let_go, devices)
        create(self.process.agent, self.transaction, sizes, partial(self.free_bytes, devices), let_go)

    def free_bytes(self, devices: Iterable[str]) -> dict[str, int]:
        """As the devices themselves count."""
        free = self.control.free_bytes()
        return {device: free.get(device, 0) for device in devices}

    def resume(self) -> None:
        if self._phase() != AgentPhase.RUNNING:
            self.process.agent.resume(self.transaction)

    def _phase(self) -> int:
        return self.process.agent.status().status.phase

    def kept(self) -> set[int]:
        """Ids of the handles that somebody of ours has. Raises DeadlinePassed where one who may does not answer."""
        warm = [self.node.warm_worker(self.world, device) for device in self.bytes_by_device]
        held = {id for worker in warm if worker for id in worker.held(self.hold)}
        try:
            return held | set(self.keeper().ids(self.pid))
        except DeadlinePassed:
            if len(held) < self.process.look().status.handles:
                raise
            return held

    def _give_from_keeper(self) -> None:
        for ids, fds in self._of_keeper():
            self._with(fds, partial(self._give, ids))

    def _of_keeper(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Ids and descriptors; none of one that is gone, or does not answer: others have the same."""
        keeper = self.keeper()
        try:
            for ids in batched(keeper.ids(self.pid), self.node.config.batch):
                yield ids, keeper.take(self.pid, ids)
        except (PeerGone, DeadlinePassed) as error:
            log.warning("job %s: process %d: nothing from its keeper: %s", self.process.job, self.pid, error)

    def _give_from_spare(self) -> None:
        """What the keeper lost with its life."""
        missing = [i for i in self.spare.ids(self.pid) if i not in self.given_back]
        for ids in batched(missing, self.node.config.batch):
            self._with(self.spare.take(self.pid, ids), partial(self._give_and_keep, ids))

    def _give_and_keep(self, ids: Sequence[int], fds: Sequence[int]) -> None:
        """To the process, and then to the next keeper, who may not answer."""
        self._give(ids, fds)
        quietly("put in escrow", lambda: self.keeper().put(self.pid, ids, fds))

    def give_from_workers(self, keep: bool = False) -> None:
        """Map what the workers hold at the old addresses, without access yet; `keep`: and put it in escrow."""
        for worker in self.workers():
            wanted = sorted(worker.held(self.hold) - self.given_back)
            for ids in batched(wanted, self.node.config.batch):
                began = time.monotonic()
                fds = worker.export(self.hold, ids)
                exported = time.monotonic()
                self._with(fds, partial(self._give, ids, keep=keep))
                now = time.monotonic()
                log.debug("%d handles: exported in %.4f s, given in %.4f s", len(ids), exported - began, now - exported)

    def _give(self, ids: Sequence[int], fds: Sequence[int], keep: bool = False) -> None:
        if keep:
            duplicates.keep(self.process, self.keeper(), ids, fds)
        self._give_as_many_as_fit(ids, fds)

    def _give_as_many_as_fit(self, ids: Sequence[int], fds: Sequence[int]) -> None:
        """A process that has nearly used up its descriptors takes fewer at a time. Raises NoDescriptors for not one."""
        try:
            self.process.agent.give(self.transaction, ids, fds)
        except (NoDescriptors, NoRoom):
            if len(ids) == 1:
                raise
            half = len(ids) // 2
            self._give_as_many_as_fit(ids[:half], fds[:half])
            self._give_as_many_as_fit(ids[half:], fds[half:])
        else:
            self.given_back.update(ids)

    # ---- control state ----------------------------------------------------------------------------------------

    @property
    def drive(self) -> ControlDrive:
        return drive_of(self.process, self.node, lambda: self.control, self.moves)

    def _drive_undecided(self) -> ControlDrive:
        """Where nothing is written down, there is nothing to note it in."""
        return ControlDrive(self.pid, lambda: self.control, self.process.placement)

    def freeze(self, deadline: float) -> None:
        self.process.agent.freeze(self.transaction)
        self.control.lock(self.pid, deadline)
        self.control.checkpoint(self.pid, deadline)

    def freeze_again(self, deadline: float) -> None:
        """Take a half-done thaw back, wherever it stopped."""
        if not self.process.agent.frozen():
            self.process.agent.freeze(self.transaction)
        self.drive.await_answer()
        self.drive.to(ControlPhase.CHECKPOINTED, deadline)

    def thaw(self, deadline: float, undo: bool = False) -> None:
        """Bring the control state back; `undo`: from a freeze that was not decided. Raises Lost, DeviceShared."""
        drive = self._drive_undecided() if undo else self.drive
        if undo and self.keeps_context and drive.settled() == ControlPhase.CHECKPOINTED:
            self.control.unlock(self.pid, deadline)  # nothing was given up: it need not be made again
        if not undo or drive.settled() != ControlPhase.ABSENT:  # a driver without the process keeps nothing of it
            drive.to(ControlPhase.RUNNING, deadline)
        if self.process.agent.frozen():
            self.process.agent.thaw(self.transaction)


def batched(ids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (ids[first : first + size] for first in range(0, len(ids), size))
