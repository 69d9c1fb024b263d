"""Escrow, duplicates of the descriptors that a job's memory depends on, in a process without a vendor library.

Before a checkpoint is decided, they are the physical handles of each process of the job. Whichever process dies, the
handles can be mapped again. After the decision they are the sealed table and the arena segments. After a restore or a
rollback the handles that were given back stay here, since their process cannot export them again. Thread-safe.
"""

import os
import threading
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct, field

from gcr.errors import NoDescriptors, RolledBack, typed
from gcr.protocol.batches import batches
from gcr.protocol.seqpacket import close_all

MOST_STAGED = 1 << 16  # descriptors of one process; as in shim/src/core/staged.h


class NotKept(RolledBack):
    """A supervisor was asked for descriptors that it does not hold: report it."""

    code = "not_kept"


class Keeper(Protocol):
    """The holder of a job's escrow: its supervisor, or the daemon once the supervisor has died."""

    def put(self, pid: int, ids: Sequence[int], fds: Sequence[int]) -> None:
        """Keeps duplicates; the caller goes on owning `fds`."""
        ...

    def drop(self, pid: int, ids: Sequence[int] | None = None) -> None:
        """Closes all handles of a process, or these. Ignores unknown ids."""
        ...

    def ids(self, pid: int) -> list[int]:
        """Returns the ids of the handles kept of a process, ascending."""
        ...

    def take(self, pid: int, ids: Sequence[int]) -> list[int]:
        """Returns duplicates of the descriptors of `ids`, in that order; the caller closes them. Raises NotKept."""
        ...

    def stage(self, pid: int, fds: Sequence[int], offset: int) -> None: ...

    def unstage(self, pid: int, offset: int, limit: int) -> list[int]: ...

    def unstage_all(self, pid: int) -> None:
        """Closes the staged descriptors of a process."""
        ...

    def forget(self, pid: int) -> None:
        """Closes all descriptors of a process that has ended."""
        ...

    def note(self, text: str) -> None:
        """Keeps a copy of the job's decision record, instead of an earlier one."""
        ...

    def noted(self) -> str:
        """Returns the last copy of the decision record; empty if there was none."""
        ...


class Escrow(Struct):
    """The one implementation of Keeper; supervisors offer it over their socket."""

    _handles: dict[int, dict[int, int]] = field(default_factory=dict)
    _staged: dict[int, list[int]] = field(default_factory=dict)
    _dropped: dict[int, set[int]] = field(default_factory=dict)  # during `copy_from`, by pid
    _lock: threading.Lock = field(default_factory=threading.Lock)
    copying: threading.Lock = field(default_factory=threading.Lock)  # one copy at a time; before `_lock`
    _note: str = ""

    def note(self, text: str) -> None:
        self._note = text

    def noted(self) -> str:
        return self._note

    def put(self, pid: int, ids: Sequence[int], fds: Sequence[int]) -> None:
        copies = duplicate(fds)
        with self._lock:
            kept = self._handles.setdefault(pid, {})
            replaced = [kept[i] for i in ids if i in kept]
            kept.update(zip(ids, copies, strict=True))
        close_all(replaced)

    def drop(self, pid: int, ids: Sequence[int] | None = None) -> None:
        with self._lock:
            kept = self._handles.get(pid, {})
            if pid in self._dropped and ids is not None:
                self._dropped[pid].update(ids)
            elif ids is None:
                self._dropped.pop(pid, None)
            gone = [kept.pop(i) for i in (list(kept) if ids is None else ids) if i in kept]
            if not kept:
                self._handles.pop(pid, None)
        close_all(gone)

    def ids(self, pid: int) -> list[int]:
        with self._lock:
            return sorted(self._handles.get(pid, {}))

    def take(self, pid: int, ids: Sequence[int]) -> list[int]:
        with self._lock:
            kept = self._handles.get(pid, {})
            if missing := [i for i in ids if i not in kept]:
                raise NotKept(f"{len(missing)} handles of process {pid} are not in escrow, such as {missing[0]}")
            return duplicate([kept[i] for i in ids])

    def stage(self, pid: int, fds: Sequence[int], offset: int) -> None:
        copies = duplicate(fds)
        with self._lock:
            staged = self._staged.setdefault(pid, [])
            gone = staged[offset:]
            staged[offset:] = copies
        close_all(gone)

    def unstage(self, pid: int, offset: int, limit: int) -> list[int]:
        with self._lock:
            return duplicate(self._staged.get(pid, [])[offset : offset + limit])

    def has_staged(self, pid: int) -> bool:
        with self._lock:
            return bool(self._staged.get(pid))

    def unstage_all(self, pid: int) -> None:
        with self._lock:
            gone = self._staged.pop(pid, [])
        close_all(gone)

    def forget(self, pid: int) -> None:
        """Closes all descriptors of a process that has ended."""
        with self._lock:
            self._dropped.pop(pid, None)
            gone = [*self._handles.pop(pid, {}).values(), *self._staged.pop(pid, [])]
        close_all(gone)

    def copy_from(self, other: Keeper, pid: int, batch: int) -> int:
        """Copies the handles of a process that another keeper has and this one lacks. Returns their number.

        A handle that is dropped meanwhile stays dropped. Raises what `other` raises, NoDescriptors.
        """
        with self.copying:
            with self._lock:
                self._dropped[pid] = set()
            try:
                mine = set(self.ids(pid))
                lacking = [id for id in other.ids(pid) if id not in mine]
                return sum(self._copy_some(other, pid, part) for _, part in batches(lacking, batch))
            finally:
                with self._lock:
                    self._dropped.pop(pid, None)

    def _copy_some(self, other: Keeper, pid: int, ids: Sequence[int]) -> int:
        fds = other.take(pid, ids)
        with self._lock:
            dropped = self._dropped.get(pid)
            kept = self._handles.setdefault(pid, {})
            fresh = {} if dropped is None else {i: fd for i, fd in zip(ids, fds, strict=True) if i not in dropped}
            fresh = {i: fd for i, fd in fresh.items() if i not in kept}
            kept.update(fresh)
            if not kept:
                self._handles.pop(pid, None)
        close_all([fd for fd in fds if fd not in fresh.values()])
        return len(fresh)

    def copy_to(self, other: Keeper, pid: int, batch: int, *, only: bool) -> None:
        """Makes another keeper keep the handles that this one has of a process, instead of its own under these ids.

        only: the other keeper drops all else. A handle that is dropped meanwhile stays dropped.
        Raises what `other` raises, NoDescriptors.
        """
        with self.copying:
            mine = self.ids(pid)
            if only and (stale := sorted({*other.ids(pid)} - {*mine})):
                other.drop(pid, stale)
            for _, part in batches(mine, batch):
                self._give_some(other, pid, part)

    def _give_some(self, other: Keeper, pid: int, ids: Sequence[int]) -> None:
        with self._lock:
            kept = self._handles.get(pid, {})
            there = [id for id in ids if id in kept]
            fds = duplicate([kept[id] for id in there])
        try:
            if there:
                other.put(pid, there, fds)
        finally:
            close_all(fds)
        if gone := sorted({*there} - {*self.ids(pid)}):
            other.drop(pid, gone)

    def held(self) -> int:
        """Returns the number of descriptors held."""
        with self._lock:
            return sum(map(len, self._handles.values())) + sum(map(len, self._staged.values()))

    def close(self) -> None:
        with self._lock:
            pids = {*self._handles, *self._staged}
        for pid in pids:
            self.forget(pid)


def duplicate(fds: Sequence[int]) -> list[int]:
    """Returns duplicates, close-on-exec, all or none. Raises NoDescriptors, and OSError for an invalid descriptor."""
    made: list[int] = []
    try:
        for fd in fds:
            made.append(os.dup(fd))
    except OSError as error:
        close_all(made)
        if isinstance(short := typed(error), NoDescriptors):
            raise short from error
        raise
    return made
