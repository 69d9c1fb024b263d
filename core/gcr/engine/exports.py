"""Memory of a process on its way out: handles exported to the workers, to the keeper and to the daemon itself.

`_lock` is held while a batch of exports is passed on, and while a free is. So a free never overtakes its handle.
"""

import logging
from collections.abc import Sequence
from functools import partial
from threading import RLock

from msgspec import Struct, field

from gcr.drain import HandleSpec
from gcr.engine.batches import consume
from gcr.engine.copyout import unexportable
from gcr.engine.session import Session
from gcr.engine.tidying import forget_freed, forget_lent
from gcr.errors import DeadlinePassed, PeerGone, RolledBack
from gcr.job.tracking import ids_of, spec_of, specs_of
from gcr.memory.escrow import Keeper
from gcr.peers.paging import Paging
from gcr.peers.worker import WorkerPeer
from gcr.protocol.agentwire import ExportBatch, HandleRecord, IdList
from gcr.protocol.batches import batches
from gcr.protocol.seqpacket import close_all
from gcr.protocol.wire import HandleFlag

log = logging.getLogger("gcr.engine")


class Exports(Struct):
    """The exported handles of one process, and the processes that hold each."""

    session: Session
    fresh: set[int] = field(default_factory=set)  # exported in this transaction, and exportable again
    imported: dict[int, tuple[str, int]] = field(default_factory=dict)  # in an earlier restore: id, device, bytes
    unkept: dict[int, int] = field(default_factory=dict)  # imported, and held by no worker and no keeper: id, bytes
    lends: bool = False  # the program goes on holding the fresh ones: no keeper needs them
    _held_before: dict[str, set[int]] = field(default_factory=dict)
    _after: int = 0
    _lock: RLock = field(default_factory=RLock)

    def choose_strategy(self, counts: bool = True) -> None:
        """Chooses `copyout` where nothing can be exported or a worker gets no context. Call `look` before.

        counts: asks the devices what they count, for a later look at what is left there
        """
        session, status = self.session, self.session.process.seen.status
        assert status
        used = [session.books.reports.ordinals()[device.ordinal] for device in status.devices if device.handles]
        session.process.copied_out = unexportable(status.status.flags) or not all(map(session.attach, used))
        if counts and not session.process.copied_out:
            counted = {uuid: session.worker(uuid).counted(session.pid)[1] for uuid in used}
            session.books.unexplained = {uuid: max(0, unexplained) for uuid, unexplained in counted.items()}

    def export_again(self, ids: Sequence[int]) -> None:
        """Exports handles that were made anew. Raises RolledBack where the process does not hand one out."""
        left, pages = sorted(ids), self._paging("memory made anew")
        while left:
            with self._lock:
                batch, fds = self._export(left[0] - 1, min(len(left), self.session.node.config.batch))
                try:
                    self._pass_on(*batch.only(left, fds))
                finally:
                    close_all(fds)
                if not batch.handles:
                    raise RolledBack(f"process {self.session.pid} did not hand out memory that it had made anew")
            pages.turn(batch.reply.last_id)
            left = [id for id in left if id > batch.reply.last_id]

    def export_new(self) -> int:
        """Exports every handle made since the last call to its worker and the keeper. Returns their number."""
        more, made = True, 0
        pages = self._paging("exports", self._after)
        while more:
            with self._lock:
                batch, fds = self._export(self._after, self.session.node.config.batch)
                try:
                    self._pass_on(batch, fds)
                finally:
                    close_all(fds)
                more, made = bool(batch.reply.more), made + len(batch.handles)
                self._after = max(self._after, batch.reply.last_id)
            if more:
                pages.turn(batch.reply.last_id)
        return made

    def _paging(self, what: str, after: int = 0) -> Paging:
        return Paging(f"process {self.session.pid}, {what}", self.session.node.config.prepare_s, after)

    def _export(self, after: int, limit: int) -> tuple[ExportBatch, list[int]]:
        return self.session.process.agent.export(self.session.transaction, after, limit)

    def _pass_on(self, batch: ExportBatch, fds: Sequence[int]) -> None:
        if any(h.device not in self.session.books.reports.ordinals() for h in batch.handles):
            self.session.look()
        self.session.books.reports.apply(batch)
        fresh = dict(zip((h.id for h in batch.handed), fds, strict=True))
        for id in fresh:
            self.imported.pop(id, None)
        if any(h.flags & HandleFlag.UNEXPORTABLE for h in batch.handles):
            self.session.process.copied_out = True
        for device in sorted({self._device(h) for h in batch.handles}):
            here = [h for h in batch.handles if self._device(h) == device]
            self._pass_on_fresh(device, [(h, fresh[h.id]) for h in here if h.id in fresh])
            kept = [h for h in here if h.flags & HandleFlag.KEPT]
            self.imported.update({h.id: (device, h.size) for h in kept})
            self._pass_on_kept(device, kept)

    def _device(self, handle: HandleRecord) -> str:
        return self.session.books.reports.ordinals()[handle.device]

    def _pass_on_fresh(self, device: str, fresh: Sequence[tuple[HandleRecord, int]]) -> None:
        if not fresh:
            return
        specs, fds = [spec_of(h) for h, _ in fresh], [fd for _, fd in fresh]
        self.fresh.update(spec.id for spec in specs)
        if not self.lends:
            self.session.keeper().put(self.session.pid, [spec.id for spec in specs], fds)
            self._spare(specs, fds)
        if not self.session.process.copied_out:
            self.session.worker(device).handles.adopt(self.session.hold, specs, fds, self.lends)
        for spec in specs:
            self.unkept.pop(spec.id, None)

    def _spare(self, specs: Sequence[HandleSpec], fds: Sequence[int]) -> None:
        try:
            self.session.spare.put(self.session.pid, [spec.id for spec in specs], fds)
        except OSError as error:  # no descriptor left; the supervisor's duplicates suffice
            log.info("job %s: process %d: no spare duplicates: %s", self.session.process.job, self.session.pid, error)

    def _pass_on_kept(self, device: str, kept: Sequence[HandleRecord]) -> None:
        """Gives the worker and the keeper what each lost of the handles that cannot be exported again."""
        if not kept or self.session.process.copied_out:  # copied memory needs no descriptor: it can be made anew
            return
        pid, hold = self.session.pid, self.session.hold
        worker, keeper = self.session.worker(device), self.session.keeper()
        held, escrowed = self._held(device, worker), set(keeper.ids(pid))
        self.unkept.update({h.id: h.size for h in kept if h.id not in held and h.id not in escrowed})
        if missing := [h for h in kept if h.id not in held and h.id in escrowed]:
            consume(keeper.take(pid, ids_of(missing)), partial(worker.handles.adopt, hold, specs_of(missing)))
        if missing := [h for h in kept if h.id not in escrowed and h.id in held]:
            consume(worker.handles.export(hold, ids_of(missing)), partial(keeper.put, pid, ids_of(missing)))

    def _held(self, device: str, worker: WorkerPeer) -> set[int]:
        if device not in self._held_before:
            self._held_before[device] = worker.handles.held(self.session.hold)
        return self._held_before[device]

    def released(self, ids: Sequence[int]) -> None:
        """Makes the workers and the keepers release handles that the program frees, before its free returns."""
        session = self.session
        with self._lock:
            if self.lends and self.fresh.issuperset(ids):
                forget_lent(session.process, ids, session.node, session.world)
            else:
                forget_freed(session.process, ids, session.node, session.world, session.keeper())
            session.spare.drop(session.pid, list(ids))
            session.books.reports.apply(IdList(session.transaction, tuple(ids)))
            self.fresh.difference_update(ids)
            for id in ids:
                self.imported.pop(id, None)
                self.unkept.pop(id, None)

    def settle_frees(self) -> None:
        """Lets go of handles that the program has freed without a word so far; behind the closed gate.

        A free that was not answered in time waits for no answer from then on. So its message may be on its way still.
        """
        if freed := self._freed(self.session.books.reports.unmapped()):
            text = "job %s: process %d: %d handles were freed, and the message is on its way"
            log.info(text, self.session.process.job, self.session.pid, len(freed))
            self.released(freed)

    def _freed(self, ids: Sequence[int]) -> list[int]:
        """Returns those of `ids`, ascending, that the process does not list any more."""
        left, freed, pages = [*ids], list[int](), self._paging("what it has freed")
        while left:
            batch, fds = self._export(left[0] - 1, min(len(left), self.session.node.config.batch))
            close_all(fds)
            reached = batch.reply.last_id if batch.reply.more else left[-1]
            there = {handle.id for handle in batch.handles}
            freed += [id for id in left if id <= reached and id not in there]
            pages.turn(reached)
            left = [id for id in left if id > reached]
        return freed

    def entrust_spares(self) -> None:
        """Gives the next keeper what the last one lost when it died and the process cannot export again."""
        session = self.session
        try:
            self._entrust_spares(session.keeper())
        except PeerGone:  # it has just died; the next keeper is the daemon itself
            self._entrust_spares(session.keeper())
        except DeadlinePassed as error:  # the keeper has them, and so have the workers
            log.warning("job %s: process %d: its keeper does not answer: %s", session.process.job, session.pid, error)
        session.spare.close()

    def _entrust_spares(self, keeper: Keeper) -> None:
        pid, spare = self.session.pid, self.session.spare
        held = set(keeper.ids(pid))
        for _, ids in batches([i for i in spare.ids(pid) if i not in held], self.session.node.config.batch):
            consume(spare.take(pid, ids), partial(keeper.put, pid, ids))
