"""The worker of a device, as the daemon sees it. A method is one JSON call.

It raises what the worker raised, PeerGone or DeadlinePassed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from gcr.drain import HandleSpec, spec_to_json
from gcr.peers.waiting import BRIEF, CALL_TIMEOUT, Progress
from gcr.protocol.batches import batches
from gcr.protocol.channel import Channel
from gcr.protocol.seqpacket import close_all


class WorkerPeer(Struct):
    """The worker of one device. `hold` names what it keeps of one process in one transaction."""

    channel: Channel
    pid: int
    device: str

    def ready(self, timeout: float) -> None:
        """Wait until it has its context. Raises what kept it from getting one."""
        self._call("ready", {}, timeout=timeout)

    def attach(self, timeout: float = CALL_TIMEOUT) -> bool:
        """Returns True if it has a context. Without one it tries once more: the device may have had no room before."""
        return bool(self._call("attach", {}, timeout=timeout)["attached"])

    def detach(self) -> None:
        """It gives its context back and goes on keeping the arena. Raises WrongState while it holds memory."""
        self._call("detach", {}, timeout=120.0)

    def held(self, hold: str) -> set[int]:
        """Ids of the device memory it holds of a process."""
        return set(self._call("held", {"hold": hold})["ids"])

    def adopt(self, hold: str, specs: Sequence[HandleSpec], fds: Sequence[int]) -> None:
        self._call("adopt", {"hold": hold, "handles": [spec_to_json(s) for s in specs]}, fds)

    def forget(self, hold: str, ids: Sequence[int]) -> None:
        self._call("forget", {"hold": hold, "ids": list(ids)})

    def reserve(self, hold: str, owner: str, nbytes: int) -> None:
        """Take `nbytes` of the arena for a process before anything of it stops; again, for what it has made since.

        Raises NoRoom.
        """
        self._call("reserve", {"hold": hold, "owner": owner, "bytes": nbytes}, timeout=120.0)

    def lay_out(self, hold: str, owner: str, specs: Sequence[HandleSpec]) -> None:
        """Places in the arena for memory that the process's own agent copies; `seal` says which. Raises NoRoom."""
        body = {"hold": hold, "owner": owner, "handles": [spec_to_json(spec) for spec in specs]}
        self._call("lay_out", body, timeout=120.0)

    def compare_with(self, hold: str, owner: str, baseline: int) -> None:
        """The next copy need not have what this descriptor of a Baseline has; until `forget_copy`."""
        self._call("compare_with", {"hold": hold, "owner": owner}, [baseline], timeout=60.0)

    def copy_live(self, hold: str, owner: str, deadline: float, progress: Progress) -> dict[str, Any]:
        """Copy what is held to the arena while the program runs: `drain` copies then what has changed since.

        `bytes`, `copied` of them, `seconds`.
        """
        body = {"hold": hold, "owner": owner, "deadline": deadline}
        return self._call("copy_live", body, timeout=deadline + 5, progress=progress)

    def drain(
        self, hold: str, owner: str, deadline: float, progress: Progress, paranoid: bool = False
    ) -> dict[str, Any]:
        """Copy everything held to the arena; `bytes`, `copied` of them now, `seconds`, `handles`.

        `snapshot`: bytes of these that are on the device still, and that `copy_on` brings to the arena.
        paranoid: what hashes say to be there already is compared byte by byte. Raises HashMissed.
        """
        body = {"hold": hold, "owner": owner, "deadline": deadline, "paranoid": paranoid}
        return self._call("drain", body, timeout=deadline + 5, progress=progress)

    def make_room(self, hold: str, deadline: float) -> int:
        """Bytes of device memory for a snapshot, until `copy_on` or `forget_copy`; 0 where there is none to spare."""
        return int(self._call("make_room", {"hold": hold, "deadline": deadline}, timeout=deadline + 5)["bytes"])

    def copy_on(self, hold: str, deadline: float, progress: Progress) -> dict[str, Any]:
        """Read the snapshot and give its room back; `bytes`, `seconds`. Raises ImageFailed where it was given up."""
        return self._call("copy_on", {"hold": hold, "deadline": deadline}, timeout=deadline + 5, progress=progress)

    def give_up_snapshots(self) -> None:
        """Gives up snapshots that are not read in a moment, since its device has too little room."""
        self._call("give_up_snapshots", {})

    def seal(self, hold: str, about: Mapping[str, object], partial: bool = False) -> list[int]:
        """The sealed table and then the arena segments, as descriptors (the caller's).

        partial: a PartialTable, for an image alone. Else raises WrongState for a copy that lacks something.
        """
        body = {"hold": hold, "about": dict(about), "partial": partial}
        return self.channel.call_json("seal", body, timeout=CALL_TIMEOUT)[1]

    def make_ring(
        self, hold: str, owner: str, slot_bytes: int, most: int, least: int, beyond: bool = False
    ) -> tuple[int, list[int]]:
        """Returns the number of slots, `least` to `most`, and their memory in order; the descriptors are the caller's.

        Instead of what was reserved; until `drop_ring`, `forget_copy` or `surrender`. `beyond`: the arena's limit.
        Raises NoRoom.
        """
        body = {"hold": hold, "owner": owner, "slot_bytes": slot_bytes, "most": most, "least": least, "beyond": beyond}
        answer, fds = self.channel.call_json("make_ring", body, timeout=120.0)
        return answer["slots"], fds

    def lay_out_held(self, hold: str) -> int:
        """All that is held lies on a line from now on; its bytes. (What comes back lies as it was sealed.)"""
        return int(self._call("lay_out_held", {"hold": hold}, timeout=60.0)["bytes"])

    def fill(self, hold: str, window: tuple[int, int, int], deadline: float) -> None:
        """Copy a window, slot and offset on the line and size, from the device. Raises RolledBack, DeadlinePassed."""
        self._call("fill", {"hold": hold, "window": window, "deadline": deadline}, timeout=deadline + 5)

    def empty(self, hold: str, window: tuple[int, int, int], deadline: float) -> None:
        """The same from the slot to the device; `create` made the memory."""
        self._call("empty", {"hold": hold, "window": window, "deadline": deadline}, timeout=deadline + 5)

    def drop_ring(self, hold: str) -> None:
        self._call("drop_ring", {"hold": hold}, timeout=60.0)

    def release(self, hold: str) -> None:
        """Let go of the device memory; what was drained stays in the arena."""
        self._call("release", {"hold": hold}, timeout=60.0)

    def forget_copy(self, hold: str) -> None:
        """Let go of the copy in the arena; device memory that is held stays."""
        self._call("forget_copy", {"hold": hold}, timeout=60.0)

    def forfeit(self, hold: str) -> None:
        """Let go of everything: its process is dead."""
        self._call("forfeit", {"hold": hold}, timeout=60.0)

    def knows(self, hold: str) -> bool:
        return bool(self._call("knows", {"hold": hold})["known"])

    def surrender(self, hold: str) -> None:
        """Let go of everything, the arena's memory included: another worker takes it over from its keeper."""
        self._call("surrender", {"hold": hold}, timeout=60.0)

    def reclaim(self, hold: str, owner: str, left: str, fds: Sequence[int]) -> None:
        """Takes over a sealed table and its segments from their keeper; they are pinned as they are needed.

        left: the device whose bytes they are, this worker's own unless the process comes back on another one.
        """
        for offset, part in batches(fds):
            body = {"hold": hold, "owner": owner, "left": left, "offset": offset, "total": len(fds)}
            self._call("reclaim", body, part, timeout=60.0)

    def create(self, hold: str, ballast: int) -> None:
        """Physical memory for everything in the table, and `ballast` bytes more; raises NoRoom, nothing kept."""
        self._call("create", {"hold": hold, "ballast": ballast}, timeout=60.0)

    def hold_ballast(self, hold: str, nbytes: int) -> None:
        """Occupy room for the driver's own needs; nothing if it holds some already. Raises NoRoom."""
        self._call("hold_ballast", {"hold": hold, "bytes": nbytes})

    def drop_ballast(self, hold: str) -> None:
        self._call("drop_ballast", {"hold": hold})

    def refill(self, hold: str, deadline: float, progress: Progress) -> dict[str, Any]:
        return self._call("refill", {"hold": hold, "deadline": deadline}, timeout=deadline + 5, progress=progress)

    def export(self, hold: str, ids: Sequence[int]) -> list[int]:
        """Descriptors of handles it holds, in order; the caller's."""
        return self.channel.call_json("export", {"hold": hold, "ids": list(ids)}, timeout=CALL_TIMEOUT)[1]

    def prepare(self, hold: str, owner: str, nbytes: int) -> None:
        """Grow the pinned arena in the background, until the hold is forfeited."""
        self._call("prepare", {"hold": hold, "owner": owner, "bytes": nbytes})

    def prepared(self) -> dict[str, int]:
        """Bytes of the arena that are ready for each process that `prepare` named, by hold."""
        return dict(self._call("prepared", {}, timeout=BRIEF)["bytes"])

    def counted(self, pid: int) -> tuple[int, int]:
        """Returns the bytes that the device counts for a process, and those it counts for none and no worker explains.

        The latter since the worker's context was made; it may be less than nothing. Handed-over memory belongs there.
        """
        found = self._call("memory", {})
        return int(found["by_pid"].get(str(pid), 0)), int(found["unexplained"])

    def arena(self) -> dict[str, Any]:
        """`bytes`, `pinned_bytes`, `link_bytes_per_s`, `cold_s`."""
        return self._call("arena", {})

    def _call(
        self,
        op: str,
        body: Mapping[str, object],
        fds: Sequence[int] = (),
        timeout: float = CALL_TIMEOUT,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        timeout = min(timeout, BRIEF) if self.channel.silent else timeout
        answer, extra = self.channel.call_json(op, body, fds, timeout=timeout, on_progress=progress)
        close_all(extra)
        return answer
