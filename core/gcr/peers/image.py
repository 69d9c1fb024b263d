"""An image helper, as the daemon sees it. A method is one JSON call.

It raises what the helper raised, PeerGone or DeadlinePassed.
"""

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial

from msgspec import Struct, field

from gcr.image.files.manifest import Manifest
from gcr.peers.waiting import CALL_TIMEOUT, Patience
from gcr.processes import ProcessIdentity
from gcr.protocol.batches import batches, counted
from gcr.protocol.channel import Channel
from gcr.protocol.operations import image as ops
from gcr.protocol.operations.operation import A, Operation, ask
from gcr.protocol.seqpacket import close_all


class StorePlace(Struct, frozen=True):
    """A store as a request names it. `key`: a descriptor of the key if it is encrypted; the daemon never reads it."""

    path: str
    key: Sequence[int] = ()

    def kept(self) -> "StorePlace":
        """Returns the same place with a descriptor of its own. Raises OSError."""
        return StorePlace(self.path, [os.dup(fd) for fd in self.key])

    def of(self, name: str) -> tuple[str, bool, str]:
        """Returns the fields of a request that name an image in it."""
        return self.path, bool(self.key), name


class ImagePeer(Struct):
    """An image helper: it writes one image, or reads one. `kill` ends its process in any state.

    lent: pids of processes of which it has a copy
    """

    channel: Channel
    pid: int
    kill: Callable[[], object] = lambda: None
    lent: set[int] = field(default_factory=set)

    def begin(self, store: StorePlace, name: str, max_bytes_per_s: float | None, timeout: float) -> int | None:
        """Claims the name in a store. Returns the bytes that are free there, None where that is not known.

        Raises ImageExists, StoreUnusable, UnsafeRuntime, WrongKey, LibraryMissing.
        """
        return self._call(ops.Begin(*store.of(name), max_bytes_per_s), timeout, store.key).free

    def parent(
        self, processes: Sequence[ProcessIdentity], timeout: float, patience: Patience
    ) -> tuple[str | None, str | None]:
        """Returns the image of the same processes that this one builds upon, and the reason why it is no newer one."""
        rows = tuple((each.pid, each.start_time, each.stack) for each in processes)
        found = self._asked(ops.Parent(rows), timeout, patience)
        return found.parent, found.refused

    def baseline(self, pid: int) -> int:
        """Returns a descriptor, the caller's, of the Baseline of a process: the chunks that the parent has."""
        (fd,) = ask(self.channel, ops.Baseline(pid), timeout=CALL_TIMEOUT)[1]
        return fd

    def lend(self, pid: int, fds: Sequence[int], partial: bool) -> None:
        """Lends the copy of a process, staged or (`partial`) for the image alone. It stays while the helper lives."""
        for offset, part in batches(fds):
            self._call(ops.Lend(pid, offset, len(fds), partial), CALL_TIMEOUT, part)
        self.lent.add(pid)

    def lend_ring(self, pid: int, fds: Sequence[int], slot_bytes: int) -> None:
        """Lends a ring through which a device's bytes are to come: the sealed table, and the ring's memory."""
        for offset, part in batches(fds):
            self._call(ops.LendRing(pid, offset, len(fds), slot_bytes), CALL_TIMEOUT, part)

    def take(self, pid: int, device: str, window: ops.Window, timeout: float, patience: Patience) -> None:
        """Takes the bytes of a window (slot, offset on the line, size); the slot is free then. Raises StoreUnusable."""
        self._asked(ops.Take(pid, device, window), timeout, patience)

    def withdraw(self, timeout: float) -> None:
        """Removes everything of the image."""
        self._call(ops.Withdraw(), timeout)

    def remove(self, store: StorePlace, name: str, created: float, timeout: float) -> None:
        """Removes an image of the instant `created`, which a helper may have published before it died."""
        self._call(ops.Remove(*store.of(name), created), timeout, store.key)

    def write(self, facts: ops.Write, timeout: float, patience: Patience) -> ops.Written:
        """Makes the image durable; returns its costs. Raises StoreUnusable; PeerGone, which leaves the result open."""
        return self._asked(facts, timeout, patience)

    def write_held(self, facts: ops.Write, ahead: bool, timeout: float, patience: Patience) -> ops.Written:
        """Brings the image's bytes to the store; there is no image before `add_folder`. Raises as `write`.

        ahead: another node may have the packs before there is an image
        """
        return self._asked(ops.WriteHeld(facts, ahead), timeout, patience)

    def add_folder(self, folder: str, facts: ops.Write, left: bool, timeout: float, patience: Patience) -> ops.Written:
        """Adds the files of processes to an image that was held, and makes it durable. Raises as `write`, NotDumped.

        left: private memory is in the processes still
        """
        return self._asked(ops.AddFolder(folder, facts, left), timeout, patience)

    def manifest(self, store: StorePlace, name: str, timeout: float, patience: Patience) -> Manifest:
        """Reads a manifest. Raises NoSuchImage, WrongImage, WrongKey, Damaged, StoreUnusable."""
        found = self._asked(ops.ReadManifest(*store.of(name)), timeout, patience, store.key)
        return Manifest.from_bytes(found.text.encode(), name)

    def sync(self, store: StorePlace, timeout: float) -> None:
        """Makes the published images of a store outlive a crash of the machine. Raises StoreUnusable."""
        self._call(ops.Sync(store.path), timeout)

    def find_parts(self, store: str, image: str | None, job: str | None, timeout: float) -> ops.FoundParts:
        """Returns the parts of an image over nodes, or of a job, in a store. Raises StoreUnusable, WrongKey."""
        return self._call(ops.FindParts(store, image, job), timeout)

    def keep_root(self, store: str, root: str, part: str, timeout: float) -> None:
        """Writes the root of an image over nodes beside this part; it is durable on return.

        Raises NoSuchImage, WrongImage, StoreUnusable.
        """
        self._call(ops.KeepRoot(store, root, part), timeout)

    def drop_parts(self, store: str, image: str, cut: str, timeout: float) -> None:
        """Removes the parts of an image over nodes that are older than that of `cut`. Raises StoreUnusable."""
        self._call(ops.DropParts(store, image, cut), timeout)

    def open(self, store: StorePlace, manifest: Manifest, timeout: float, patience: Patience) -> None:
        """Opens an image to read from; nothing of it is removed until the channel closes.

        Raises Damaged, NoSuchImage, WrongKey and others of the store.
        """
        self._asked(ops.Open(*store.of(manifest.name), manifest.seal().hex()), timeout, patience, store.key)

    def lend_slots(self, device: str, slot_bytes: int, fds: Sequence[int]) -> None:
        """Lends the memory that `read` fills with the bytes of a device: consecutive, in slots of one size."""
        for offset, part in batches(fds):
            self._call(ops.LendSlots(device, slot_bytes, offset, len(fds)), CALL_TIMEOUT, part)

    def read(
        self, pid: int, device: str, slot: int, windows: Sequence[tuple[int, int]], timeout: float, patience: Patience
    ) -> None:
        """Reads windows of whole chunks, one behind the other in a slot; each chunk is right when this returns.

        Raises Damaged …

        After any error the helper may still be writing to the slot.
        """
        self._asked(ops.Read(pid, device, slot, tuple(windows)), timeout, patience)

    def lacking(
        self, pid: int, device: str, kept: Collection[int], most: int, timeout: float, patience: Patience
    ) -> Sequence[tuple[int, int]]:
        """Returns the windows of a line of the open image that are not on the device by now: offset and size.

        kept: ids of allocations that lie there as `brought` has told. No chunk is known to be there until the next one.
        """
        return self._asked(ops.Lacking(pid, device, tuple(sorted(kept)), most), timeout, patience).windows

    def brought(self, pid: int, device: str) -> None:
        """Tells that all windows that were `lacking` are on the device. This helper knows their names from then on."""
        self._call(ops.Brought(pid, device), CALL_TIMEOUT)

    def load(self, pid: int, timeout: float, patience: Patience) -> list[int]:
        """Returns descriptors of all of a process, as a checkpoint stages it; the caller's. Raises Damaged, NoRoom …"""
        total = self._asked(ops.Load(pid), timeout, patience).descriptors
        return counted(partial(self._loaded, pid), total, f"image helper {self.pid}")

    def _loaded(self, pid: int, offset: int, limit: int) -> list[int]:
        return ask(self.channel, ops.Loaded(pid, offset, limit), timeout=CALL_TIMEOUT)[1]

    def _call(self, operation: Operation[A], timeout: float, fds: Sequence[int] = ()) -> A:
        answer, extra = ask(self.channel, operation, fds, timeout=timeout)
        close_all(extra)
        return answer

    def _asked(self, operation: Operation[A], timeout: float, patience: Patience, fds: Sequence[int] = ()) -> A:
        heard, silent = patience.heard, patience.heard_nothing
        answer, extra = ask(self.channel, operation, fds, timeout=timeout, on_progress=heard, on_silence=silent)
        close_all(extra)
        return answer
