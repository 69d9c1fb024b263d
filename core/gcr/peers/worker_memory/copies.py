"""Copies of processes in a worker's arena, and their snapshots on its device, as the daemon sees them."""

from collections.abc import Sequence

from gcr.drain import HandleSpec
from gcr.peers.waiting import BRIEF, MEMORY_S, ROOM_S
from gcr.peers.worker_memory.calls import WorkerCalls, rows
from gcr.protocol.batches import batches, counted
from gcr.protocol.operations import snapshot
from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.operation import Progress
from gcr.protocol.operations.worker import CopyName


class WorkerCopies(WorkerCalls):
    """The operations on copies and snapshots."""

    def reserve(self, copy: CopyName, owner: str, nbytes: int) -> None:
        """Takes `nbytes` of the arena for a process before it stops; again for memory that it has made since.

        Raises NoRoom.
        """
        self._call(ops.Reserve(copy, owner, nbytes), timeout=ROOM_S)

    def lay_out(self, copy: CopyName, owner: str, specs: Sequence[HandleSpec]) -> None:
        """Takes places in the arena for memory that the process's agent copies. `seal` names them. Raises NoRoom."""
        self._call(ops.LayOut(copy, owner, rows(specs)), timeout=ROOM_S)

    def compare_with(self, copy: CopyName, owner: str, baseline: int, whole: bool = False) -> None:
        """Gives the copy a Baseline, before it is made. The copy may lack the parent's bytes, unless it is `whole`."""
        self._call(ops.CompareWith(copy, owner, whole), [baseline], timeout=MEMORY_S)

    def copy_live(
        self, copy: CopyName, owner: str, deadline: float, progress: Progress, beside: bool
    ) -> ops.CopiedLive:
        """Copies all held memory to the arena while the program runs. `drain` then copies the later changes.

        beside: the device may tell by a kernel of its own what the parent image lacks; else all is copied
        """
        return self._call(ops.CopyLive(copy, owner, deadline, beside), timeout=deadline + 5, progress=progress)

    def drain(
        self,
        copy: CopyName,
        owner: str,
        deadline: float,
        progress: Progress,
        paranoid: bool = False,
        last: bool = False,
    ) -> ops.Drained:
        """Copies all held memory to the arena. `copy_on` brings the bytes there that a snapshot has.

        paranoid: bytes that the hashes call equal are compared one by one. Raises HashMissed.
        last: as of `ops.Drain`
        """
        asked = ops.Drain(copy, owner, deadline, paranoid, last)
        return self._call(asked, timeout=deadline + 5, progress=progress)

    def make_room(self, copy: CopyName, deadline: float) -> int:
        """Makes room for a snapshot, until `copy_on` or `forget_copy`. Returns its bytes; 0 without spare memory."""
        return self._call(snapshot.MakeRoom(copy, deadline), timeout=deadline + 5).bytes

    def expect(self, copy: CopyName, owner: str, nbytes: int) -> None:
        """Has the worker take room on the host for `set_aside`, and does not wait for that."""
        self._tell(snapshot.Expect(copy, owner, nbytes))

    def set_aside(
        self,
        copy: CopyName,
        owner: str,
        pieces: Sequence[tuple[int, int, int, bool]],
        deadline: float,
        fills: bool = True,
    ) -> snapshot.AsideFacts:
        """Copies parts of held handles within the device; `read_in_place` and `copy_on` bring them to the host.

        pieces, fills: as of `snapshot.SetAside`

        Raises NoRoom, also for the host's memory; RolledBack where a handle is not held, UnsupportedState where the
        device copies nothing within itself.
        """
        asked = snapshot.SetAside(copy, owner, tuple(pieces), fills, deadline)
        return self._call(asked, timeout=deadline + 5)

    def read_in_place(self, copy: CopyName, deadline: float) -> ops.Moved:
        """Reads what `set_aside` has left in place. Raises NoRoom; RolledBack for memory that the program has freed."""
        return self._call(snapshot.ReadInPlace(copy, deadline), timeout=deadline + 5)

    def segments(self, copy: CopyName, count: int) -> list[int]:
        """Returns descriptors of the `count` segments of a copy, the caller's."""
        return counted(lambda at, limit: self._given(ops.SealedSegments(copy, at, limit)), count, self.channel.name)

    def copy_on(self, copy: CopyName, deadline: float, progress: Progress) -> ops.Moved:
        """Reads the snapshot and gives its room back. Raises ImageFailed where it was given up."""
        return self._call(snapshot.CopyOn(copy, deadline), timeout=deadline + 5, progress=progress)

    def seal(self, copy: CopyName, about: ops.ProcessFacts, partial: bool = False) -> list[int]:
        """Returns descriptors of the sealed table and then of the arena's segments, the caller's.

        partial: a PartialTable, for an image alone. Without it a copy that lacks bytes raises WrongState.
        """
        asked = ops.Seal(copy, about, partial)
        return self._all_given(asked, lambda at, limit: ops.SealedSegments(copy, at - 1, limit))[1]

    def forget_copy(self, copy: CopyName) -> None:
        """Releases the copy in the arena; device memory that is held stays."""
        self._call(ops.ForgetCopy(copy), timeout=MEMORY_S)

    def knows(self, copy: CopyName) -> bool:
        """Tells whether the worker has the copy."""
        return self._call(ops.Knows(copy)).known

    def reclaim(self, copy: CopyName, owner: str, left: str, fds: Sequence[int]) -> None:
        """Gives the worker a sealed table and its segments, which come from their keeper. It maps them, and pins none.

        left: the device whose bytes they are, this worker's own unless the process comes back on another one.
        """
        for offset, part in batches(fds):
            self._call(ops.Reclaim(copy, owner, left, offset, len(fds)), part, timeout=MEMORY_S)

    def driver_at_work(self, hold: str, seconds: float) -> None:
        """Says that the driver brings the control state of a process back, which takes about so long; 0: it is done.

        A refill that would end before lets the driver's copies in between.
        """
        self._call(ops.DriverAtWork(hold, seconds), timeout=BRIEF)

    def refill(self, copy: CopyName, deadline: float, progress: Progress) -> ops.Moved:
        """Copies the arena's bytes to the memory that `create` made."""
        return self._call(ops.Refill(copy, deadline), timeout=deadline + 5, progress=progress)

    def refill_ahead(self, copy: CopyName, most: int, begins: bool, deadline: float) -> int:
        """Makes and refills the next piece of a suspended process's memory. Returns its bytes: see ops.RefillAhead."""
        return self._call(ops.RefillAhead(copy, most, begins, deadline), timeout=deadline + 5).bytes
