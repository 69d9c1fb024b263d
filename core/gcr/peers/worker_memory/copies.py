"""Copies of processes in a worker's arena, and their snapshots on its device, as the daemon sees them."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from gcr.drain import HandleSpec
from gcr.peers.waiting import Progress
from gcr.peers.worker_memory.calls import WorkerCalls, rows
from gcr.protocol.batches import batches
from gcr.protocol.operations import worker as ops


class WorkerCopies(WorkerCalls):
    """The operations on copies and snapshots."""

    def reserve(self, hold: str, owner: str, nbytes: int) -> None:
        """Take `nbytes` of the arena for a process before anything of it stops; again, for what it has made since.

        Raises NoRoom.
        """
        self._call(ops.Reserve(hold, owner, nbytes), timeout=120.0)

    def lay_out(self, hold: str, owner: str, specs: Sequence[HandleSpec]) -> None:
        """Places in the arena for memory that the process's own agent copies; `seal` says which. Raises NoRoom."""
        self._call(ops.LayOut(hold, owner, rows(specs)), timeout=120.0)

    def compare_with(self, hold: str, owner: str, baseline: int) -> None:
        """The next copy need not have what this descriptor of a Baseline has; until `forget_copy`."""
        self._call(ops.CompareWith(hold, owner), [baseline], timeout=60.0)

    def copy_live(self, hold: str, owner: str, deadline: float, progress: Progress) -> dict[str, Any]:
        """Copy what is held to the arena while the program runs: `drain` copies then what has changed since.

        `bytes`, `copied` of them, `seconds`.
        """
        return asdict(self._call(ops.CopyLive(hold, owner, deadline), timeout=deadline + 5, progress=progress))

    def drain(
        self, hold: str, owner: str, deadline: float, progress: Progress, paranoid: bool = False
    ) -> dict[str, Any]:
        """Copy everything held to the arena; `bytes`, `copied` of them now, `seconds`, `handles`.

        `snapshot`: bytes of these that are on the device still, and that `copy_on` brings to the arena.
        paranoid: what hashes say to be there already is compared byte by byte. Raises HashMissed.
        """
        asked = ops.Drain(hold, owner, deadline, paranoid)
        return asdict(self._call(asked, timeout=deadline + 5, progress=progress))

    def make_room(self, hold: str, deadline: float) -> int:
        """Bytes of device memory for a snapshot, until `copy_on` or `forget_copy`; 0 where there is none to spare."""
        return self._call(ops.MakeRoom(hold, deadline), timeout=deadline + 5).bytes

    def copy_on(self, hold: str, deadline: float, progress: Progress) -> dict[str, Any]:
        """Read the snapshot and give its room back; `bytes`, `seconds`. Raises ImageFailed where it was given up."""
        return asdict(self._call(ops.CopyOn(hold, deadline), timeout=deadline + 5, progress=progress))

    def seal(self, hold: str, about: Mapping[str, object], partial: bool = False) -> list[int]:
        """The sealed table and then the arena segments, as descriptors (the caller's).

        partial: a PartialTable, for an image alone. Else raises WrongState for a copy that lacks something.
        """
        return self._given(ops.Seal(hold, dict(about), partial))

    def forget_copy(self, hold: str) -> None:
        """Let go of the copy in the arena; device memory that is held stays."""
        self._call(ops.ForgetCopy(hold), timeout=60.0)

    def knows(self, hold: str) -> bool:
        return self._call(ops.Knows(hold)).known

    def reclaim(self, hold: str, owner: str, left: str, fds: Sequence[int]) -> None:
        """Takes over a sealed table and its segments from their keeper; they are pinned as they are needed.

        left: the device whose bytes they are, this worker's own unless the process comes back on another one.
        """
        for offset, part in batches(fds):
            self._call(ops.Reclaim(hold, owner, left, offset, len(fds)), part, timeout=60.0)

    def refill(self, hold: str, deadline: float, progress: Progress) -> dict[str, Any]:
        return asdict(self._call(ops.Refill(hold, deadline), timeout=deadline + 5, progress=progress))
