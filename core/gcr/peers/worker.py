"""The worker of a device, as the daemon sees it. A method is one JSON call.

It raises what the worker raised, PeerGone or DeadlinePassed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import asdict

from gcr.drain import HandleSpec, spec_to_json
from gcr.peers.waiting import BRIEF, CALL_TIMEOUT, Progress
from gcr.protocol.batches import batches
from gcr.protocol.channel import Channel
from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.operation import A, Operation, ask
from gcr.protocol.seqpacket import close_all


class WorkerPeer(Struct):
    """The worker of one device. `hold` names what it keeps of one process in one transaction."""

    channel: Channel
    pid: int
    device: str

    def ready(self, timeout: float) -> None:
        """Wait until it has its context. Raises what kept it from getting one."""
        self._call(ops.Ready(), timeout=timeout)

    def attach(self, timeout: float = CALL_TIMEOUT) -> bool:
        """Returns True if it has a context. Without one it tries once more: the device may have had no room before."""
        return self._call(ops.Attach(), timeout=timeout).attached

    def detach(self) -> None:
        """It gives its context back and goes on keeping the arena. Raises WrongState while it holds memory."""
        self._call(ops.Detach(), timeout=120.0)

    def held(self, hold: str) -> set[int]:
        """Ids of the device memory it holds of a process."""
        return set(self._call(ops.Held(hold)).ids)

    def adopt(self, hold: str, specs: Sequence[HandleSpec], fds: Sequence[int]) -> None:
        self._call(ops.Adopt(hold, _rows(specs)), fds)

    def forget(self, hold: str, ids: Sequence[int]) -> None:
        self._call(ops.Forget(hold, tuple(ids)))

    def reserve(self, hold: str, owner: str, nbytes: int) -> None:
        """Take `nbytes` of the arena for a process before anything of it stops; again, for what it has made since.

        Raises NoRoom.
        """
        self._call(ops.Reserve(hold, owner, nbytes), timeout=120.0)

    def lay_out(self, hold: str, owner: str, specs: Sequence[HandleSpec]) -> None:
        """Places in the arena for memory that the process's own agent copies; `seal` says which. Raises NoRoom."""
        self._call(ops.LayOut(hold, owner, _rows(specs)), timeout=120.0)

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

    def give_up_snapshots(self) -> None:
        """Gives up snapshots that are not read in a moment, since its device has too little room."""
        self._call(ops.GiveUpSnapshots())

    def seal(self, hold: str, about: Mapping[str, object], partial: bool = False) -> list[int]:
        """The sealed table and then the arena segments, as descriptors (the caller's).

        partial: a PartialTable, for an image alone. Else raises WrongState for a copy that lacks something.
        """
        return ask(self.channel, ops.Seal(hold, dict(about), partial), timeout=CALL_TIMEOUT)[1]

    def make_ring(
        self, hold: str, owner: str, slot_bytes: int, most: int, least: int, beyond: bool = False
    ) -> tuple[int, list[int]]:
        """Returns the number of slots, `least` to `most`, and their memory in order; the descriptors are the caller's.

        Instead of what was reserved; until `drop_ring`, `forget_copy` or `surrender`. `beyond`: the arena's limit.
        Raises NoRoom.
        """
        asked = ops.MakeRing(hold, owner, slot_bytes, most, least, beyond)
        made, fds = ask(self.channel, asked, timeout=120.0)
        return made.slots, fds

    def lay_out_held(self, hold: str) -> int:
        """All that is held lies on a line from now on; its bytes. (What comes back lies as it was sealed.)"""
        return self._call(ops.LayOutHeld(hold), timeout=60.0).bytes

    def fill(self, hold: str, window: tuple[int, int, int], deadline: float) -> None:
        """Copy a window, slot and offset on the line and size, from the device. Raises RolledBack, DeadlinePassed."""
        self._call(ops.Fill(hold, window, deadline), timeout=deadline + 5)

    def empty(self, hold: str, window: tuple[int, int, int], deadline: float) -> None:
        """The same from the slot to the device; `create` made the memory."""
        self._call(ops.Empty(hold, window, deadline), timeout=deadline + 5)

    def drop_ring(self, hold: str) -> None:
        self._call(ops.DropRing(hold), timeout=60.0)

    def release(self, hold: str) -> None:
        """Let go of the device memory; what was drained stays in the arena."""
        self._call(ops.Release(hold), timeout=60.0)

    def forget_copy(self, hold: str) -> None:
        """Let go of the copy in the arena; device memory that is held stays."""
        self._call(ops.ForgetCopy(hold), timeout=60.0)

    def forfeit(self, hold: str) -> None:
        """Let go of everything: its process is dead."""
        self._call(ops.Forfeit(hold), timeout=60.0)

    def knows(self, hold: str) -> bool:
        return self._call(ops.Knows(hold)).known

    def surrender(self, hold: str) -> None:
        """Let go of everything, the arena's memory included: another worker takes it over from its keeper."""
        self._call(ops.Surrender(hold), timeout=60.0)

    def reclaim(self, hold: str, owner: str, left: str, fds: Sequence[int]) -> None:
        """Takes over a sealed table and its segments from their keeper; they are pinned as they are needed.

        left: the device whose bytes they are, this worker's own unless the process comes back on another one.
        """
        for offset, part in batches(fds):
            self._call(ops.Reclaim(hold, owner, left, offset, len(fds)), part, timeout=60.0)

    def create(self, hold: str, ballast: int) -> None:
        """Physical memory for everything in the table, and `ballast` bytes more; raises NoRoom, nothing kept."""
        self._call(ops.Create(hold, ballast), timeout=60.0)

    def hold_ballast(self, hold: str, nbytes: int) -> None:
        """Occupy room for the driver's own needs; nothing if it holds some already. Raises NoRoom."""
        self._call(ops.HoldBallast(hold, nbytes))

    def drop_ballast(self, hold: str) -> None:
        self._call(ops.DropBallast(hold))

    def refill(self, hold: str, deadline: float, progress: Progress) -> dict[str, Any]:
        return asdict(self._call(ops.Refill(hold, deadline), timeout=deadline + 5, progress=progress))

    def export(self, hold: str, ids: Sequence[int]) -> list[int]:
        """Descriptors of handles it holds, in order; the caller's."""
        return ask(self.channel, ops.Export(hold, tuple(ids)), timeout=CALL_TIMEOUT)[1]

    def prepare(self, hold: str, owner: str, nbytes: int) -> None:
        """Grow the pinned arena in the background, until the hold is forfeited."""
        self._call(ops.Prepare(hold, owner, nbytes))

    def prepared(self) -> dict[str, int]:
        """Bytes of the arena that are ready for each process that `prepare` named, by hold."""
        return self._call(ops.Prepared(), timeout=BRIEF).bytes

    def counted(self, pid: int) -> tuple[int, int]:
        """Returns the bytes that the device counts for a process, and those it counts for none and no worker explains.

        The latter since the worker's context was made; it may be less than nothing. Handed-over memory belongs there.
        """
        found = self._call(ops.Memory())
        return found.by_pid.get(pid, 0), found.unexplained

    def arena(self) -> dict[str, Any]:
        """Returns the fields of ArenaFacts; a speed is missing until it is measured."""
        facts: dict[str, Any] = to_builtins(self._call(ops.ArenaState()))
        return facts

    def _call(
        self,
        operation: Operation[A],
        fds: Sequence[int] = (),
        timeout: float = CALL_TIMEOUT,
        progress: Progress | None = None,
    ) -> A:
        timeout = min(timeout, BRIEF) if self.channel.silent else timeout
        answer, extra = ask(self.channel, operation, fds, timeout=timeout, on_progress=progress)
        close_all(extra)
        return answer


def _rows(specs: Sequence[HandleSpec]) -> tuple[ops.Row, ...]:
    return tuple(tuple(spec_to_json(spec)) for spec in specs)
