"""Keepers of a job: its supervisor and the daemon, or the daemon alone. What one loses with its life the other has.

A change that does not reach the supervisor is written down (missed.py).
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct, field

from gcr.daemon.missed import Missed
from gcr.errors import DeadlinePassed, GcrError, NoDescriptors, NotRead, PeerGone, RolledBack
from gcr.memory.escrow import Escrow, Keeper
from gcr.protocol.seqpacket import close_all

log = logging.getLogger("gcr.daemon")


class BothKeepers(Struct, frozen=True):
    """A Keeper. What is staged is with the supervisor alone: the process and the worker have it as well.

    The daemon keeps the staged descriptors of a process that has ended, in the place of that process (orphans.py).
    """

    job: str
    supervisor: Keeper
    own: Escrow
    missed: Missed = field(default_factory=Missed)

    def put(self, pid: int, ids: Sequence[int], fds: Sequence[int]) -> None:
        """Makes the daemon's duplicates first, as far as it has descriptors. Raises what the supervisor raises."""
        with self.own.copying:  # a copy that is under way would bring what was there before
            self._put_own(pid, ids, fds)
            with self._told(pid, ids):
                self.supervisor.put(pid, ids, fds)

    def _put_own(self, pid: int, ids: Sequence[int], fds: Sequence[int]) -> None:
        try:
            self.own.put(pid, ids, fds)
        except (NoDescriptors, OSError) as error:
            self.own.drop(pid, ids)  # of what it had under these ids: that may be other memory
            log.info("job %s: process %d: %d handles have one keeper only: %s", self.job, pid, len(ids), error)

    def drop(self, pid: int, ids: Sequence[int] | None = None) -> None:
        self.own.drop(pid, ids)
        with self._told(pid, ids):
            self.supervisor.drop(pid, ids)

    def ids(self, pid: int) -> list[int]:
        """Returns the ids that either has. Raises PeerGone, DeadlinePassed where only the supervisor could have any."""
        own = self.own.ids(pid)
        try:
            self.catch_up(pid)
            return sorted({*own, *self.supervisor.ids(pid)})
        except (PeerGone, DeadlinePassed):
            if not own:
                raise
            return own

    def take(self, pid: int, ids: Sequence[int]) -> list[int]:
        """Takes them from the daemon, and those that it lacks from the supervisor."""
        mine = set(self.own.ids(pid))
        lacking = [id for id in ids if id not in mine]
        if not lacking:
            return self.own.take(pid, ids)
        self.catch_up(pid)
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
        return self.own.unstage(pid, offset, limit) or self.supervisor.unstage(pid, offset, limit)

    def unstage_all(self, pid: int) -> None:
        self.own.unstage_all(pid)
        self.supervisor.unstage_all(pid)

    def forget(self, pid: int) -> None:
        self.missed.forget(pid)
        self.own.forget(pid)
        self.supervisor.forget(pid)

    def note(self, text: str) -> None:
        self.own.note(text)
        self.supervisor.note(text)

    def noted(self) -> str:
        return self.supervisor.noted()

    def catch_up(self, pid: int) -> None:
        """Has the supervisor let go of memory that is another one by now. Raises what the supervisor raises."""
        self.missed.told(pid, self.supervisor.drop)

    @contextmanager
    def _told(self, pid: int, ids: Sequence[int] | None) -> Iterator[None]:
        """Within it the supervisor is told of a change; what does not reach it is written down.

        A message that was sent is no miss: a supervisor that is stopped reads it before it goes to another daemon.
        """
        sent = False
        try:
            self.catch_up(pid)
            sent = True
            yield
        except (GcrError, OSError) as error:
            if not sent or not isinstance(error, DeadlinePassed) or isinstance(error, NotRead):
                write_down(self.missed, self.job, pid, ids)
            raise


class SoleKeeper(Struct, frozen=True):
    """A Keeper: the daemon, while the job has no supervisor, or one that has not come to this daemon."""

    job: str
    own: Escrow
    missed: Missed

    def put(self, pid: int, ids: Sequence[int], fds: Sequence[int]) -> None:
        """Raises RolledBack where it cannot be written down that a supervisor lacks them; they are not kept then."""
        write_down(self.missed, self.job, pid, ids)
        self.own.put(pid, ids, fds)

    def drop(self, pid: int, ids: Sequence[int] | None = None) -> None:
        try:
            write_down(self.missed, self.job, pid, ids)
        finally:
            self.own.drop(pid, ids)

    def ids(self, pid: int) -> list[int]:
        return self.own.ids(pid)

    def take(self, pid: int, ids: Sequence[int]) -> list[int]:
        return self.own.take(pid, ids)

    def stage(self, pid: int, fds: Sequence[int], offset: int) -> None:
        self.own.stage(pid, fds, offset)

    def unstage(self, pid: int, offset: int, limit: int) -> list[int]:
        return self.own.unstage(pid, offset, limit)

    def unstage_all(self, pid: int) -> None:
        self.own.unstage_all(pid)

    def forget(self, pid: int) -> None:
        """Forgets a process that has ended; a supervisor that comes back does so by itself."""
        self.missed.forget(pid)
        self.own.forget(pid)

    def note(self, text: str) -> None:
        self.own.note(text)

    def noted(self) -> str:
        return self.own.noted()


def write_down(missed: Missed, job: str, pid: int, ids: Sequence[int] | None) -> None:
    """Raises RolledBack where the disk does not take it."""
    try:
        missed.add(pid, ids)
    except OSError as error:
        text = f"job {job}: cannot write down what the supervisor of process {pid} has missed: {error.strerror}"
        raise RolledBack(text, hint="is there room where gcr keeps its state? gcr daemon logs") from error
