"""Both keepers of a supervised job, its supervisor and the daemon: what one loses with its life the other has."""

import logging
from collections.abc import Sequence

from msgspec import Struct

from gcr.errors import DeadlinePassed, NoDescriptors, PeerGone
from gcr.memory.escrow import Escrow, Keeper
from gcr.protocol.seqpacket import close_all

log = logging.getLogger("gcr.daemon")


class BothKeepers(Struct, frozen=True):
    """A Keeper. What is staged is with the supervisor alone: the process and the worker have it as well."""

    job: str
    supervisor: Keeper
    own: Escrow

    def put(self, pid: int, ids: Sequence[int], fds: Sequence[int]) -> None:
        """The daemon's duplicates are made first, as far as it has descriptors. Raises what the supervisor raises."""
        with self.own.copying:  # a copy that is under way would bring what was there before
            self._put_own(pid, ids, fds)
            self.supervisor.put(pid, ids, fds)

    def _put_own(self, pid: int, ids: Sequence[int], fds: Sequence[int]) -> None:
        try:
            self.own.put(pid, ids, fds)
        except (NoDescriptors, OSError) as error:
            self.own.drop(pid, ids)  # of what it had under these ids: that may be other memory
            log.info("job %s: process %d: %d handles have one keeper only: %s", self.job, pid, len(ids), error)

    def drop(self, pid: int, ids: Sequence[int] | None = None) -> None:
        self.own.drop(pid, ids)
        self.supervisor.drop(pid, ids)

    def ids(self, pid: int) -> list[int]:
        """What either has. Raises PeerGone, DeadlinePassed where only the supervisor could have something."""
        own = self.own.ids(pid)
        try:
            return sorted({*own, *self.supervisor.ids(pid)})
        except (PeerGone, DeadlinePassed):
            if not own:
                raise
            return own

    def take(self, pid: int, ids: Sequence[int]) -> list[int]:
        """From the daemon where it has them all; else those that it lacks from the supervisor."""
        mine = set(self.own.ids(pid))
        lacking = [id for id in ids if id not in mine]
        if not lacking:
            return self.own.take(pid, ids)
        found = dict(zip(lacking, self.supervisor.take(pid, lacking), strict=True))
        try:
            have = [id for id in ids if id in mine]
            found.update(zip(have, self.own.take(pid, have), strict=True))
        except BaseException:
            close_all(list(found.values()))
            raise
        return [found[id] for id in ids]

    def stage(self, pid: int, fds: Sequence[int], offset: int) -> None:
        self.supervisor.stage(pid, fds, offset)

    def unstage(self, pid: int, offset: int, limit: int) -> list[int]:
        return self.supervisor.unstage(pid, offset, limit)

    def unstage_all(self, pid: int) -> None:
        self.own.unstage_all(pid)
        self.supervisor.unstage_all(pid)

    def forget(self, pid: int) -> None:
        self.own.forget(pid)
        self.supervisor.forget(pid)

    def note(self, text: str) -> None:
        self.own.note(text)
        self.supervisor.note(text)

    def noted(self) -> str:
        return self.supervisor.noted()
