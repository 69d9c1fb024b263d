"""gcrd's own helpers seen from gcrd: supervisors, workers and control helpers as objects with methods.

Each method is one JSON call over that process's channel. It raises what the other side raised, PeerGone or
DeadlinePassed.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from gcr.backend import Device
from gcr.channel import Channel
from gcr.control import ControlMeans, ControlPhase, ProcessView, Refusal
from gcr.drain import HandleSpec, spec_to_json
from gcr.errors import DeadlinePassed, RolledBack
from gcr.image.manifest import Manifest
from gcr.processes import ProcessIdentity, is_stopped
from gcr.seqpacket import close_all

CALL_TIMEOUT = 15.0
BRIEF = 1.0  # seconds of patience with one who left the last call without an answer: a program may stand meanwhile
BATCH = 200
START_TIMEOUT = 60.0  # a child's, on a busy machine
Progress = Callable[[dict[str, Any]], None]


class Patience(Protocol):
    """Of whoever waits for a helper that may hang, or be stopped. What it raises ends the wait."""

    def heard(self, now: Mapping[str, Any]) -> None:
        """How far the helper is."""
        ...

    def heard_nothing(self) -> None:
        """For a moment."""
        ...


class SupervisorPeer(Struct):
    """A job's supervisor; offers the Keeper interface of its escrow."""

    channel: Channel
    pid: int

    def put(self, pid: int, ids: Sequence[int], fds: Sequence[int]) -> None:
        self._call("put", {"pid": pid, "ids": list(ids)}, fds)

    def drop(self, pid: int, ids: Sequence[int] | None = None) -> None:
        self._call("drop", {"pid": pid, "ids": None if ids is None else list(ids)})

    def ids(self, pid: int) -> list[int]:
        return list(self._asked("ids", {"pid": pid})[0]["ids"])

    def take(self, pid: int, ids: Sequence[int]) -> list[int]:
        return self._asked("take", {"pid": pid, "ids": list(ids)})[1]

    def stage(self, pid: int, fds: Sequence[int], offset: int = 0) -> None:
        for first in range(0, len(fds), BATCH):
            self._call("stage", {"pid": pid, "offset": offset + first}, fds[first : first + BATCH])

    def unstage(self, pid: int, offset: int, limit: int) -> list[int]:
        return self._asked("unstage", {"pid": pid, "offset": offset, "limit": limit})[1]

    def unstage_all(self, pid: int) -> None:
        self._call("unstage_all", {"pid": pid})

    def forget(self, pid: int) -> None:
        self._call("forget", {"pid": pid})

    def note(self, text: str) -> None:
        self._call("note", {"text": text})

    def noted(self) -> str:
        return str(self._asked("noted", {})[0]["text"])

    def _call(self, op: str, body: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        close_all(self._asked(op, body, fds)[1])

    def _asked(self, op: str, body: Mapping[str, object], fds: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        """The answer and its descriptors. Raises DeadlinePassed, which names the supervisor."""
        brief = self.channel.silent or is_stopped(self.pid)
        try:
            return self.channel.call_json(op, body, fds, timeout=BRIEF if brief else CALL_TIMEOUT)
        except DeadlinePassed as late:
            if not is_stopped(self.pid):
                raise DeadlinePassed(f"the job's supervisor, process {self.pid}, does not answer") from late
            text = f"the job's supervisor, process {self.pid}, is stopped"
            raise DeadlinePassed(text, hint=f"kill -CONT {self.pid}; then try again") from late


class ControlPeer(Struct):
    """The control helper of one backend; the ControlState interface, one process away."""

    channel: Channel
    pid: int
    _means: ControlMeans | None = None

    @property
    def means(self) -> ControlMeans:
        """By whose hand control state is saved; asked once."""
        if self._means is None:
            self._means = ControlMeans(self._call("means", {}, 20.0)["means"])
        return self._means

    def phase(self, pid: int) -> ControlPhase:
        return ControlPhase(self._call("phase", {"pid": pid}, 20.0)["phase"])

    def inspect(self, pid: int) -> ProcessView:
        found = self._call("inspect", {"pid": pid}, 20.0)
        refusals = tuple(Refusal(**refusal) for refusal in found["refusals"])
        return ProcessView(pid, ControlPhase(found["phase"]), found["bytes_by_device"], refusals)

    def devices(self) -> list[Device]:
        """All of its vendor's, in the order of `gcr devices`."""
        return [Device(**found) for found in self._call("devices", {}, 20.0)["devices"]]

    def free_bytes(self) -> dict[str, int]:
        """By device UUID, what nobody uses."""
        return {device.uuid: device.total_bytes - device.used_bytes for device in self.devices()}

    def check_move(self, devices: Mapping[str, str]) -> None:
        """Raises what says that a process cannot come back so, UUIDs old to new; none: on no other devices at all."""
        self._call("check_move", {"devices": dict(devices)}, 20.0)

    def holders(self, device: str) -> dict[int, int]:
        """Who uses a device, and how many bytes; empty where nobody can tell."""
        found = self._call("holders", {"device": device}, 20.0)["holders"]
        return {int(pid): int(size) for pid, size in found.items()}

    def lock(self, pid: int, deadline: float) -> None:
        self._call("lock", {"pid": pid, "deadline": deadline}, deadline + 2)

    def checkpoint(self, pid: int, deadline: float) -> None:
        self._call("checkpoint", {"pid": pid, "deadline": deadline}, deadline + 2)

    def restore(self, pid: int, devices: Mapping[str, str], deadline: float) -> None:
        self._call("restore", {"pid": pid, "devices": dict(devices), "deadline": deadline}, deadline + 2)

    def unlock(self, pid: int, deadline: float) -> None:
        self._call("unlock", {"pid": pid, "deadline": deadline}, deadline + 2)

    def _call(self, op: str, body: Mapping[str, object], timeout: float) -> dict[str, Any]:
        return self.channel.call_json(op, body, timeout=timeout)[0]


class WorkerPeer(Struct):
    """The worker of one device. `hold` names what it keeps of one process in one transaction."""

    channel: Channel
    pid: int
    device: str

    def ready(self, timeout: float) -> None:
        """Wait until it has its context. Raises what kept it from getting one."""
        self._call("ready", {}, timeout=timeout)

    def attach(self, timeout: float = CALL_TIMEOUT) -> bool:
        """Whether it has a context, after one more try if it has none: the device may have had no room before."""
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

    def let_go(self) -> None:
        """Somebody finds no room on its device: snapshots that are not read in a moment are given up."""
        self._call("let_go", {})

    def seal(self, hold: str, about: Mapping[str, object], partial: bool = False) -> list[int]:
        """The sealed table and then the arena segments, as descriptors (the caller's).

        partial: a PartialTable, for an image alone. Else raises WrongState for a copy that lacks something.
        """
        body = {"hold": hold, "about": dict(about), "partial": partial}
        return self.channel.call_json("seal", body, timeout=CALL_TIMEOUT)[1]

    def make_ring(
        self, hold: str, owner: str, slot_bytes: int, most: int, least: int, beyond: bool = False
    ) -> tuple[int, list[int]]:
        """How many slots there are, `least` to `most`, and their memory, one behind the other (the caller's).

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
        """Let go of everything, the arena's memory included: another worker takes it over from whoever keeps it."""
        self._call("surrender", {"hold": hold}, timeout=60.0)

    def reclaim(self, hold: str, owner: str, left: str, fds: Sequence[int]) -> None:
        """Take over a sealed table and its segments from whoever kept them; pinned as they are needed.

        left: the device whose bytes they are, this worker's own unless the process comes back on another one.
        """
        for first in range(0, len(fds), BATCH):
            body = {"hold": hold, "owner": owner, "left": left, "offset": first, "total": len(fds)}
            self._call("reclaim", body, fds[first : first + BATCH], timeout=60.0)

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
        """Bytes the device counts for a process, and those it counts for nobody that no worker's books explain.

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


class StorePlace(Struct, frozen=True):
    """A store as a request names it: its path, and if it is encrypted a descriptor of its key, which we never read."""

    path: str
    key: Sequence[int] = ()

    def kept(self) -> "StorePlace":
        """With a descriptor of its own. Raises OSError."""
        return StorePlace(self.path, [os.dup(fd) for fd in self.key])

    def of(self, name: str) -> dict[str, Any]:
        """Names an image in it."""
        return {"store": self.path, "encrypted": bool(self.key), "name": name}


class ImagePeer(Struct):
    """An image helper: it writes one image, or reads one. `kill`: its process, whatever that does."""

    channel: Channel
    pid: int
    kill: Callable[[], object] = lambda: None

    def begin(self, store: StorePlace, name: str, max_bytes_per_s: float | None, timeout: float) -> int | None:
        """Claims the name in a store. Returns the bytes that are free there, None where that is not known.

        Raises ImageExists, StoreUnusable, UnsafeRuntime, WrongKey, LibraryMissing.
        """
        asked = {**store.of(name), "max_bytes_per_s": max_bytes_per_s}
        free: int | None = self._call("begin", asked, timeout, store.key)["free"]
        return free

    def parent(
        self, processes: Sequence[ProcessIdentity], timeout: float, patience: Patience
    ) -> tuple[str | None, str | None]:
        """The image of the same processes that this one builds upon, and why it is no newer one."""
        rows = [[each.pid, each.start_time, each.stack] for each in processes]
        found = self._asked("parent", {"processes": rows}, timeout, patience)
        return found["parent"], found["refused"]

    def baseline(self, pid: int) -> int:
        """A descriptor of what the parent has of a process, as a Baseline; the caller's."""
        (fd,) = self.channel.call_json("baseline", {"pid": pid}, timeout=CALL_TIMEOUT)[1]
        return fd

    def lend(self, pid: int, fds: Sequence[int], partial: bool) -> None:
        """What is staged of a process, or `partial`, copied for the image; it stays as it is while the helper lives."""
        body = {"pid": pid, "total": len(fds), "partial": partial}
        for first in range(0, len(fds), BATCH):
            self._call("lend", body, CALL_TIMEOUT, fds[first : first + BATCH])

    def lend_ring(self, pid: int, fds: Sequence[int], slot_bytes: int) -> None:
        """A device's bytes are to come through a ring: the sealed table, and the ring's memory."""
        body = {"pid": pid, "total": len(fds), "slot_bytes": slot_bytes}
        for first in range(0, len(fds), BATCH):
            self._call("lend_ring", body, CALL_TIMEOUT, fds[first : first + BATCH])

    def take(self, pid: int, device: str, window: tuple[int, int, int], timeout: float, patience: Patience) -> None:
        """What lies in a slot, slot and offset on the line and size, which is free then. Raises StoreUnusable."""
        body = {"pid": pid, "device": device, "window": window}
        self._asked("take", body, timeout, patience)

    def withdraw(self, timeout: float) -> None:
        """Nothing of the image is left."""
        self._call("withdraw", {}, timeout)

    def remove(self, store: StorePlace, name: str, created: float, timeout: float) -> None:
        """An image of that instant that a helper published before it died, if it did."""
        self._call("remove", {**store.of(name), "created": created}, timeout, store.key)

    def write(self, facts: Mapping[str, Any], timeout: float, patience: Patience) -> dict[str, Any]:
        """The image is durable: what it cost. Raises StoreUnusable, and PeerGone, which leaves that open."""
        return self._asked("write", facts, timeout, patience)

    def manifest(self, store: StorePlace, name: str, timeout: float, patience: Patience) -> Manifest:
        """Raises NoSuchImage, WrongImage, WrongKey, Damaged, StoreUnusable."""
        found = self._asked("manifest", store.of(name), timeout, patience, store.key)
        return Manifest.from_bytes(found["text"].encode(), name)

    def sync(self, store: StorePlace, timeout: float) -> None:
        """What was published in a store outlives a crash of the machine. Raises StoreUnusable."""
        self._call("sync", {"store": store.path}, timeout)

    def open(self, store: StorePlace, manifest: Manifest, timeout: float, patience: Patience) -> None:
        """To read from; nothing of the image goes until the channel closes. Raises Damaged, NoSuchImage, WrongKey …"""
        asked = {**store.of(manifest.name), "seal": manifest.seal().hex()}
        self._asked("open", asked, timeout, patience, store.key)

    def slots(self, device: str, slot_bytes: int, fds: Sequence[int]) -> None:
        """Where `read` brings the bytes of a device: memory that lies one behind the other, in slots of one size."""
        self._call("slots", {"device": device, "slot_bytes": slot_bytes}, CALL_TIMEOUT, fds)

    def read(self, pid: int, device: str, window: tuple[int, int, int], timeout: float, patience: Patience) -> None:
        """Whole chunks, each of them right when this returns: slot, offset on the line, size. Raises Damaged …

        After any error the helper may still be writing to the slot.
        """
        self._asked("read", {"pid": pid, "device": device, "window": window}, timeout, patience)

    def load(self, pid: int, timeout: float, patience: Patience) -> list[int]:
        """All of a process, as a checkpoint stages it: descriptors, the caller's. Raises Damaged, NoRoom …"""
        total = self._asked("load", {"pid": pid}, timeout, patience)["descriptors"]
        fds: list[int] = []
        try:
            while len(fds) < total:
                body = {"pid": pid, "offset": len(fds), "limit": BATCH}
                fresh = self.channel.call_json("loaded", body, timeout=CALL_TIMEOUT)[1]
                fds += fresh
                if not fresh:
                    raise RolledBack(f"image helper {self.pid} gave fewer descriptors than it said")
        except BaseException:
            close_all(fds)
            raise
        return fds

    def _call(self, op: str, body: Mapping[str, object], timeout: float, fds: Sequence[int] = ()) -> dict[str, Any]:
        answer, extra = self.channel.call_json(op, body, fds, timeout=timeout)
        close_all(extra)
        return answer

    def _asked(
        self, op: str, body: Mapping[str, object], timeout: float, patience: Patience, fds: Sequence[int] = ()
    ) -> dict[str, Any]:
        answer, extra = self.channel.call_json(
            op, body, fds, timeout=timeout, on_progress=patience.heard, on_silence=patience.heard_nothing
        )
        close_all(extra)
        return answer
