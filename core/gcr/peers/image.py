"""An image helper, as the daemon sees it. A method is one JSON call.

It raises what the helper raised, PeerGone or DeadlinePassed.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from gcr.errors import RolledBack
from gcr.image.files.manifest import Manifest
from gcr.peers.waiting import CALL_TIMEOUT, Patience
from gcr.processes import ProcessIdentity
from gcr.protocol.batches import BATCH, batches, gathered
from gcr.protocol.channel import Channel
from gcr.protocol.seqpacket import close_all


class StorePlace(Struct, frozen=True):
    """A store as a request names it: its path, and if it is encrypted a descriptor of its key, which we never read."""

    path: str
    key: Sequence[int] = ()

    def kept(self) -> "StorePlace":
        """Returns the same place with a descriptor of its own. Raises OSError."""
        return StorePlace(self.path, [os.dup(fd) for fd in self.key])

    def of(self, name: str) -> dict[str, Any]:
        """Names an image in it."""
        return {"store": self.path, "encrypted": bool(self.key), "name": name}


class ImagePeer(Struct):
    """An image helper: it writes one image, or reads one. `kill` ends its process in any state."""

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
        """Returns the image of the same processes that this one builds upon, and why it is no newer one."""
        rows = [[each.pid, each.start_time, each.stack] for each in processes]
        found = self._asked("parent", {"processes": rows}, timeout, patience)
        return found["parent"], found["refused"]

    def baseline(self, pid: int) -> int:
        """Returns a descriptor, the caller's, of the Baseline of a process: the chunks that the parent has."""
        (fd,) = self.channel.call_json("baseline", {"pid": pid}, timeout=CALL_TIMEOUT)[1]
        return fd

    def lend(self, pid: int, fds: Sequence[int], partial: bool) -> None:
        """Lends the copy of a process, staged or (`partial`) for the image alone. It stays while the helper lives."""
        body = {"pid": pid, "total": len(fds), "partial": partial}
        for _, part in batches(fds):
            self._call("lend", body, CALL_TIMEOUT, part)

    def lend_ring(self, pid: int, fds: Sequence[int], slot_bytes: int) -> None:
        """Lends a ring through which a device's bytes are to come: the sealed table, and the ring's memory."""
        body = {"pid": pid, "total": len(fds), "slot_bytes": slot_bytes}
        for _, part in batches(fds):
            self._call("lend_ring", body, CALL_TIMEOUT, part)

    def take(self, pid: int, device: str, window: tuple[int, int, int], timeout: float, patience: Patience) -> None:
        """Takes the bytes of a window (slot, offset on the line, size); the slot is free then. Raises StoreUnusable."""
        body = {"pid": pid, "device": device, "window": window}
        self._asked("take", body, timeout, patience)

    def withdraw(self, timeout: float) -> None:
        """Removes everything of the image."""
        self._call("withdraw", {}, timeout)

    def remove(self, store: StorePlace, name: str, created: float, timeout: float) -> None:
        """Removes the image of that instant, if a helper published it before it died."""
        self._call("remove", {**store.of(name), "created": created}, timeout, store.key)

    def write(self, facts: Mapping[str, Any], timeout: float, patience: Patience) -> dict[str, Any]:
        """Makes the image durable; returns its costs. Raises StoreUnusable; PeerGone, which leaves the result open."""
        return self._asked("write", facts, timeout, patience)

    def manifest(self, store: StorePlace, name: str, timeout: float, patience: Patience) -> Manifest:
        """Raises NoSuchImage, WrongImage, WrongKey, Damaged, StoreUnusable."""
        found = self._asked("manifest", store.of(name), timeout, patience, store.key)
        return Manifest.from_bytes(found["text"].encode(), name)

    def sync(self, store: StorePlace, timeout: float) -> None:
        """Makes what was published in a store outlive a crash of the machine. Raises StoreUnusable."""
        self._call("sync", {"store": store.path}, timeout)

    def open(self, store: StorePlace, manifest: Manifest, timeout: float, patience: Patience) -> None:
        """Opens an image to read from; nothing of it is removed until the channel closes.

        Raises Damaged, NoSuchImage, WrongKey and others of the store.
        """
        asked = {**store.of(manifest.name), "seal": manifest.seal().hex()}
        self._asked("open", asked, timeout, patience, store.key)

    def lend_slots(self, device: str, slot_bytes: int, fds: Sequence[int]) -> None:
        """Lends the memory that `read` fills with the bytes of a device: consecutive, in slots of one size."""
        self._call("lend_slots", {"device": device, "slot_bytes": slot_bytes}, CALL_TIMEOUT, fds)

    def read(self, pid: int, device: str, window: tuple[int, int, int], timeout: float, patience: Patience) -> None:
        """Whole chunks, each of them right when this returns: slot, offset on the line, size. Raises Damaged …

        After any error the helper may still be writing to the slot.
        """
        self._asked("read", {"pid": pid, "device": device, "window": window}, timeout, patience)

    def load(self, pid: int, timeout: float, patience: Patience) -> list[int]:
        """All of a process, as a checkpoint stages it: descriptors, the caller's. Raises Damaged, NoRoom …"""
        total = self._asked("load", {"pid": pid}, timeout, patience)["descriptors"]
        return gathered(self._loaded(pid, total))

    def _loaded(self, pid: int, total: int) -> Iterator[list[int]]:
        came = 0
        while came < total:
            body = {"pid": pid, "offset": came, "limit": BATCH}
            yield (fresh := self.channel.call_json("loaded", body, timeout=CALL_TIMEOUT)[1])
            came += len(fresh)
            if not fresh:
                raise RolledBack(f"image helper {self.pid} gave fewer descriptors than it said")

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
