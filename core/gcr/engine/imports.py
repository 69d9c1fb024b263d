"""Memory of a process on its way back: from the keeper, the daemon, the workers, or a copy."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct, field

from gcr.engine import duplicates
from gcr.engine.batches import consume
from gcr.engine.copyout import AgentCopy, StagedCopy, create
from gcr.engine.session import Session
from gcr.engine.tidying import quietly
from gcr.errors import DeadlinePassed, NoDescriptors, NoRoom, PeerGone
from gcr.protocol.batches import batches
from gcr.protocol.wire import AgentPhase, FrameType

log = logging.getLogger("gcr.engine")


class Imports(Struct):
    """The handles that one process takes back, from each process that may hold them."""

    session: Session
    given_back: set[int] = field(default_factory=set)  # imported by the process in this transaction

    def take_own(self) -> None:
        """Gives a process its own memory after `hand_over`, wherever that stopped. `map` gives access to it.

        It comes from the keeper first, then from the workers.
        """
        session = self.session
        if session.phase() != AgentPhase.HANDED_OVER:
            return
        self._give_from_keeper()
        self._give_from_spare()
        if self.given_back < set(session.books.table.allocations):
            self.give_from_workers()
        if session.copy is not None:
            self._make_anew(session.copy, set(session.books.table.allocations) - self.given_back)

    def take_foreign(self, ids: Sequence[int], fds: Sequence[int]) -> None:
        """Gives a process memory of others that it holds under these ids; no keeper of its own gets it."""
        self._give_as_many_as_fit(ids, fds)

    def map(self) -> None:
        """Gives access to all memory after a hand-over; all of it must be back."""
        session = self.session
        if session.phase() == AgentPhase.HANDED_OVER:
            session.process.agent.map(session.transaction)

    def _make_anew(self, copy: StagedCopy, missing: set[int]) -> None:
        """Makes memory that no process holds any more, and fills it from the copy. Raises NoRoom."""
        if missing:
            self.create({id: size for id, size in copy.sizes().items() if id in missing})
            back = AgentCopy(self.session.process.agent, self.session.transaction, copy)
            back.run(FrameType.COPY_IN, self.session.node.config.drain_s, wanted=missing)

    def create(self, sizes: Mapping[int, int]) -> None:
        """Makes new physical memory in the process for these handles. Raises NoRoom."""
        session, devices = self.session, self.session.bytes_by_device
        free_room, free = partial(session.node.free_room, devices), partial(session.free_bytes, devices)
        create(session.process.agent, session.transaction, sizes, free, free_room)

    def kept(self) -> set[int]:
        """Returns ids of the handles that a worker or the keeper holds.

        Raises DeadlinePassed where a keeper does not answer and the workers lack a handle.
        """
        session = self.session
        warm = [session.node.warm_worker(session.world, device) for device in session.bytes_by_device]
        held = {id for worker in warm if worker for id in worker.handles.held(session.hold)}
        try:
            return held | set(session.keeper().ids(session.pid))
        except DeadlinePassed:
            if len(held) < session.process.look().status.handles:
                raise
            return held

    def _give_from_keeper(self) -> None:
        for ids, fds in self._of_keeper():
            consume(fds, partial(self._give, ids))

    def _of_keeper(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Yields ids and descriptors; none where the keeper is gone or silent, since the workers have the same."""
        keeper, pid = self.session.keeper(), self.session.pid
        try:
            missing = [id for id in keeper.ids(pid) if id not in self.given_back]
            for _, ids in batches(missing, self.session.node.config.batch):
                yield ids, keeper.take(pid, ids)
        except (PeerGone, DeadlinePassed) as error:
            log.warning("job %s: process %d: nothing from its keeper: %s", self.session.process.job, pid, error)

    def _give_from_spare(self) -> None:
        """Gives the process what the keeper lost when it died."""
        spare, pid = self.session.spare, self.session.pid
        missing = [i for i in spare.ids(pid) if i not in self.given_back]
        for _, ids in batches(missing, self.session.node.config.batch):
            consume(spare.take(pid, ids), partial(self._give_and_keep, ids))

    def _give_and_keep(self, ids: Sequence[int], fds: Sequence[int]) -> None:
        """Gives handles to the process, and then to the next keeper, which may not answer."""
        self._give(ids, fds)
        quietly("put in escrow", lambda: self.session.keeper().put(self.session.pid, ids, fds))

    def give_from_workers(self, keep: bool = False) -> None:
        """Maps what the workers hold at the old addresses, without access yet. `keep` puts it in escrow as well."""
        for worker in self.session.workers():
            wanted = sorted(worker.handles.held(self.session.hold) - self.given_back)
            for _, ids in batches(wanted, self.session.node.config.batch):
                began = time.monotonic()
                fds = worker.handles.export(self.session.hold, ids)
                exported = time.monotonic()
                consume(fds, partial(self._give, ids, keep=keep))
                now = time.monotonic()
                log.debug("%d handles: exported in %.4f s, given in %.4f s", len(ids), exported - began, now - exported)

    def _give(self, ids: Sequence[int], fds: Sequence[int], keep: bool = False) -> None:
        if keep:
            duplicates.keep(self.session.process, self.session.keeper(), ids, fds)
        self._give_as_many_as_fit(ids, fds)

    def _give_as_many_as_fit(self, ids: Sequence[int], fds: Sequence[int]) -> None:
        """Gives fewer at a time to a process short of descriptors. Raises NoDescriptors where it takes not even one."""
        try:
            self.session.process.agent.give(self.session.transaction, ids, fds)
        except (NoDescriptors, NoRoom):
            if len(ids) == 1:
                raise
            half = len(ids) // 2
            self._give_as_many_as_fit(ids[:half], fds[:half])
            self._give_as_many_as_fit(ids[half:], fds[half:])
        else:
            self.given_back.update(ids)
