"""The operations by which an image helper writes one image: `begin` … `write`, or `withdraw`; see service.py."""

import logging
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gcr import config
from gcr.criu import messages
from gcr.criu.leftpages import left_pages
from gcr.criu.pages import chunk_sizes
from gcr.errors import GcrError, LibraryMissing, UsageError
from gcr.faults import reach
from gcr.hashing.baseline import Baseline
from gcr.image.disk.failing import usable
from gcr.image.disk.room import free_bytes
from gcr.image.files.imagedfile import ImagedFile
from gcr.image.files.manifest import Beside, Costs, Cut, ImagedProcess, Manifest, Source
from gcr.image.write.folder import add_folder
from gcr.image.write.parent import Identity, Parent, parent_of
from gcr.image.write.placing import Counts
from gcr.image.write.publishing import Contents
from gcr.image.write.rate import Rate
from gcr.image.write.writer import ImageWriter
from gcr.image_helper.answering import store_of, telling
from gcr.image_helper.hostmemory import add_host_memory
from gcr.image_helper.lent import Lent
from gcr.image_helper.streaming import Streams
from gcr.memory.layout import SealedTable
from gcr.protocol.batches import Incoming
from gcr.protocol.channel import Request
from gcr.protocol.operations import image as ops
from gcr.protocol.operations.operation import Answer, Handlers
from gcr.protocol.seqpacket import close_all
from gcr.version import __version__

log = logging.getLogger("gcr.image")


class Unpublished(Struct, frozen=True):
    """An image without a manifest. Its device memory is in the store.

    changed: bytes that its parent has not at the same place, None without one · refused: why that is no newer image
    """

    asked: ops.Write
    tables: Sequence[SealedTable]
    changed: int | None
    refused: str | None


class Writing(Struct):
    """The image that is written. `_parent`: None before the search; then the parent, and why no newer image is it."""

    lent: Lent = field(default_factory=Lent)
    streams: Streams = field(default_factory=lambda: Streams(config.load().segment_bytes))
    _stack: ExitStack = field(default_factory=ExitStack)
    _writer: ImageWriter | None = None
    _answers: int = 0  # of the store, so far: the caller sees that the store does answer
    _parent: tuple[Parent | None, str | None] | None = None
    _held: Unpublished | None = None
    _written: str | None = None  # the image's name, once it is durable
    _arriving: Incoming = field(default_factory=Incoming)  # descriptors by pid
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def finish(self) -> None:
        """Waits until an image that has begun to be written is written; drops one that has not."""
        with self._lock:
            self._stack.close()

    def operations(self) -> Handlers:
        return {
            ops.Begin: lambda asked, fds, _request: Answer(self.begin(asked, fds)),
            ops.Parent: lambda asked, _fds, request: Answer(self.parent(asked, request)),
            ops.Baseline: lambda asked, _fds, _request: Answer(fds=[self._baseline(asked.pid)]),
            ops.Lend: lambda asked, fds, _request: self._lend(asked, fds),
            ops.LendRing: lambda asked, fds, _request: self._lend_ring(asked, fds),
            ops.Take: lambda asked, _fds, request: self.take(asked, request),
            ops.Withdraw: lambda _asked, _fds, _request: self._withdraw(),
            ops.Write: lambda asked, _fds, request: Answer(self.write(asked, request)),
            ops.WriteHeld: lambda asked, _fds, request: Answer(self.write(asked.facts, request, True, asked.ahead)),
            ops.AddFolder: lambda asked, _fds, request: Answer(self._add_folder(asked, request)),
        }

    def begin(self, asked: ops.Begin, fds: list[int]) -> ops.Free:
        """Claims the name, looks at the room, and begins to sort the store's chunks by name.

        Raises ImageExists, StoreUnusable, UnsafeRuntime, WrongKey …
        """
        reach("image.begin")
        store = store_of(asked, fds, self._heard)
        threads, rate = config.load().threads, Rate(asked.max_bytes_per_s)
        for memory in (self.lent, self.streams):  # closed after the writer, which may be reading it
            self._stack.callback(memory.close)
        self._writer = self._stack.enter_context(ImageWriter(store, asked.name, threads, rate))
        with suppress(RuntimeError):  # the system has no thread left: then the first chunk waits
            threading.Thread(target=self._writer.prepare, name="gcr-known", daemon=True).start()
        with usable(store.path):
            return ops.Free(free_bytes(store.packs.folder))

    def _heard(self) -> None:
        self._answers += 1

    def parent(self, asked: ops.Parent, request: Request) -> ops.ParentFound:
        """Returns the image that this one builds upon; no file of it goes from here on."""
        with telling(request, lambda: self._answers, 0):
            parent, refused = self._found_parent({*asked.processes})
        return ops.ParentFound(parent.name if parent else None, refused)

    def _baseline(self, pid: int) -> int:
        """Returns a descriptor of the parent's hashes of one process, the caller's; of the key alone without a parent.

        Raises UsageError before `parent`.
        """
        if self._parent is None or self._writer is None:
            raise UsageError("it is not known yet what the image builds upon")
        parent = self._parent[0]
        return (parent.baseline(pid) if parent else Baseline(self._writer.key)).to_memfd()

    def _found_parent(self, who: Collection[Identity]) -> tuple[Parent | None, str | None]:
        """Looks for the parent once; the new image continues with its key. A broken image is no reason to fail."""
        assert self._writer
        if self._parent is None:
            try:
                self._parent = parent_of(self._writer, who)
            except (GcrError, OSError, ValueError) as error:
                log.warning("no parent found: %s", error)
                self._parent = None, str(error)
            if self._parent[0]:
                self._writer.key = self._parent[0].key
        return self._parent

    def _lend(self, asked: ops.Lend, fds: list[int]) -> None:
        """Takes the staged copy of one process and holds it still; `partial`: one made for this image alone."""
        if (arrived := self._arriving.add(asked.pid, fds, asked.offset, asked.total)) is not None:
            self.lent.take(asked.pid, arrived, asked.partial)

    def _lend_ring(self, asked: ops.LendRing, fds: list[int]) -> None:
        """Takes the sealed table of a device and the ring through which its bytes pass; holds the ring's memory."""
        if (arrived := self._arriving.add(asked.pid, fds, asked.offset, asked.total)) is not None:
            table, *ring = arrived
            try:
                self.streams.open(SealedTable.from_fd(table), ring, asked.slot_bytes)
            finally:
                close_all(arrived)

    def take(self, asked: ops.Take, request: Request) -> None:
        """Takes a window that lies in a slot; the slot is free when this returns. Raises StoreUnusable, UsageError."""
        if self._writer is None or self._parent is None:  # the hashes are made with the parent's key
            raise UsageError("no window is taken before it is known what the image builds upon")
        reach("image.take")
        counts = self._writer.counts
        with telling(request, lambda: counts.total, self.streams.total_bytes()):
            self.streams.take(self._writer, (asked.pid, asked.device), asked.window)

    def _withdraw(self) -> None:
        """Removes everything that was begun, also a durable image."""
        writer = self._writer
        with self._lock, usable(writer.store.path if writer else Path()):
            self._stack.close()
            if writer and self._written:
                writer.store.remove([self._written])

    def write(self, asked: ops.Write, request: Request, held: bool = False, ahead: bool = False) -> ops.Written:
        """Writes the image; it is durable when this returns, unless `held`. `ahead`: other nodes may have the packs.

        Raises StoreUnusable, ImageExists; then there is no image.
        """
        assert self._writer
        began, counts = time.monotonic(), self._writer.counts
        total = self.lent.total_bytes() + self.streams.total_bytes()
        with self._lock, self._kept_locked(held), telling(request, lambda: counts.total, total):
            reach("image.write")
            if held:
                _prepare_to_cut()
            tables = [*self.lent.tables(), *self.streams.tables()]
            who = {(table.pid, table.start_time, _as_imaged(asked, table).stack) for table in tables}
            parent, refused = self._found_parent(who)
            self._writer.add(self.lent.additions(parent))
            if ahead:
                self._writer.send_ahead()
                reach("image.ahead")
            written = {**self.lent.written(self._writer, parent), **self.streams.written(self._writer)}
            changed = parent.bytes_changed(written) if parent else None
            unpublished = Unpublished(asked, tables, changed, refused)
            if held:
                self._held = unpublished
                return ops.Written(**self._costs(counts, unpublished).uncompressed(), parent_refused=refused)
            files = add_host_memory(self._writer, asked.tree) if asked.tree else ()
            return self._published(unpublished, files, began)

    def _add_folder(self, asked: ops.AddFolder, request: Request) -> ops.Written:
        """Adds the files of the image's processes, and publishes it. Raises as `write`, UsageError."""
        began, held, writer, folder = time.monotonic(), self._held, self._writer, Path(asked.folder)
        if held is None or writer is None:
            raise UsageError("there is no image that waits for its processes")
        self._held = None
        with self._lock, self._kept_locked(), telling(request, lambda: writer.counts.total, 0):
            with left_pages(folder, writer.chunk_bytes, asked.left) as left:
                files = add_folder(writer, folder, chunk_sizes(folder, writer.chunk_bytes, left), left)
            return self._published(replace(held, asked=asked.facts), files, began)

    def _published(self, held: Unpublished, files: Sequence[ImagedFile], began: float) -> ops.Written:
        assert self._writer
        reach("image.commit")
        manifest = self._writer.commit(lambda contents: self._described(held, contents, files))
        self._written = manifest.name
        self.streams.let_go()
        reach("image.published")
        log.info("image %s: %d bytes in %.2f s", manifest.name, manifest.costs.bytes_written, time.monotonic() - began)
        costs = manifest.costs.uncompressed()
        return ops.Written(**costs, parent_refused=held.refused, host_bytes=manifest.host_bytes)

    @contextmanager
    def _kept_locked(self, held: bool = False) -> Iterator[None]:
        """Releases everything after the block, except after an image that is `held` or the only copy.

        The store's lock stays until the daemon has recorded an only copy.
        """
        try:
            yield
        except BaseException:
            self._stack.close()
            raise
        if not (held or self.streams.tables()):
            self._stack.close()

    def _described(self, held: Unpublished, contents: Contents, files: Sequence[ImagedFile]) -> Manifest:
        assert self._writer
        asked = held.asked
        known = ((table, _as_imaged(asked, table)) for table in held.tables)
        whole = bool(files) and asked.tree is None
        return Manifest(
            name=self._writer.name,
            cut=Cut.PROCESS if whole else Cut.DEVICE,
            created=asked.created,
            source=Source(asked.job, asked.backend, asked.simulated, {"gcr": __version__}, asked.models),
            processes=tuple(ImagedProcess(table, each.stack, each.generation) for table, each in known),
            packs=tuple(contents.packs),
            beside=Beside(contents.chunks, contents.hashes),
            costs=self._costs(contents.counts, held),
            only_copy=bool(whole or self.streams.tables()),
            timings=asked.timings,
            files=files,
        )

    def _costs(self, counts: Counts, held: Unpublished) -> Costs:
        assert self._parent
        parent = self._parent[0]
        return Costs(
            parent=parent.name if parent else None,
            bytes_total=counts.total,
            bytes_changed=held.changed,
            bytes_zero=counts.zero,
            bytes_written=counts.written,
        )


def _prepare_to_cut() -> None:
    """Loads what the files of the processes are cut with, beside the writes."""

    def load() -> None:
        with suppress(LibraryMissing):  # the files say so
            messages.load()

    with suppress(RuntimeError):  # the system has no thread left: then the files wait
        threading.Thread(target=load, name="gcr-criu", daemon=True).start()


def _as_imaged(asked: ops.Write, table: SealedTable) -> ops.ImagedAs:
    """Raises UsageError for a process that was lent and that the request does not name."""
    if found := asked.processes.get(table.pid):
        return found
    raise UsageError(f"the request says nothing of process {table.pid}")
