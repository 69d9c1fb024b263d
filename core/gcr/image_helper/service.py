"""The operations of an image helper, one method each; `ImagePeer` is their other end.

A helper writes one image, `begin` · (`parent` · `baseline` …) · `lend` … · `write`, or, where the host has no room for
its bytes, `begin` · `parent` · `lend_ring` … · `take` … · `write`. Or it reads one: `open`, and of each process
`slots` · `read` … through memory of a worker's, or `load` · `loaded` … into memory of its own.
"""

import logging
import os
import resource
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from gcr import config, units
from gcr.errors import Damaged, GcrError, NoRoom, NoSuchImage, PeerGone, UsageError, WrongImage
from gcr.faults import reach
from gcr.image.chunks.lines import FreshLine, Slots, by_device
from gcr.image.crypto.ciphers import cipher_of
from gcr.image.crypto.key import lent_key
from gcr.image.disk.durable import sync_images
from gcr.image.disk.failing import usable
from gcr.image.disk.room import free_bytes
from gcr.image.files.manifest import Cut, ImagedProcess, Manifest
from gcr.image.read.reader import ImageReader
from gcr.image.store.location import is_none, without_store
from gcr.image.store.store import Store
from gcr.image.write.parent import ChunkNames, Identity, Parent, parent_of
from gcr.image.write.rate import Rate
from gcr.image.write.writer import Contents, ImageWriter
from gcr.image_helper.lent import Lent
from gcr.image_helper.streaming import Streams
from gcr.memory.hostmemory import available_host_bytes
from gcr.memory.layout import SealedTable
from gcr.memory.memfiles import NO_MEMORY
from gcr.protocol.channel import Request
from gcr.protocol.seqpacket import close_all
from gcr.version import __version__

log = logging.getLogger("gcr.image")

TELL_EVERY = 0.2
WINDOW_BYTES = 1 << 30  # that a line of our own is read in
Answer = tuple[Mapping[str, Any], Sequence[int]]


class ImageService(Struct):
    """`_parent`: None until it was looked for; then what was found, and why it is no newer image. `_came`: bytes read,
    as they come; several threads add to it. `_reading` is never closed: a store that hangs would have us wait for it.
    """

    _stack: ExitStack = field(default_factory=ExitStack)
    _writer: ImageWriter | None = None
    _answers: int = 0  # of the store, so far: who waits for us sees that it does answer
    _parent: tuple[Parent | None, str | None] | None = None
    _lent: Lent = field(default_factory=Lent)
    _streams: Streams = field(default_factory=lambda: Streams(config.load().segment_bytes))
    _written: str | None = None  # the image's name, once it is durable
    _arriving: dict[int, list[int]] = field(default_factory=dict)
    _reading: ExitStack = field(default_factory=ExitStack)
    _reader: ImageReader | None = None
    _slots: dict[str, Slots] = field(default_factory=dict)  # by the device of the image
    _came: list[int] = field(default_factory=list)
    _loaded: dict[int, list[int]] = field(default_factory=dict)
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, request: Request) -> None:
        body, fds = request.json(), request.take_fds()
        operation: Callable[..., Answer | None] | None = getattr(self, f"op_{body['op']}", None)
        try:
            if operation is None:
                raise UsageError(f"an image helper knows no {body['op']!r}")
            try:
                answer, given = operation(body, fds, request) or ({}, ())
            finally:
                close_all(fds)
            try:
                request.reply_json(answer, given)
            except PeerGone:
                log.info("nobody hears that %s is done", body["op"])
        finally:
            self._lent.unmap()

    def finish(self) -> None:
        """What was begun to be written is written; of anything else nothing is left."""
        with self._writing:
            self._stack.close()

    # ---- writing ------------------------------------------------------------------------------------------------

    def op_begin(self, body: Mapping[str, Any], fds: list[int], _request: Request) -> Answer:
        """Claims the name, and looks at the room. Raises ImageExists, StoreUnusable, UnsafeRuntime, WrongKey …"""
        reach("image.begin")
        store = _store(body, fds, self._heard)
        threads, rate = config.load().threads, Rate(body["max_bytes_per_s"])
        for memory in (self._lent, self._streams):  # closed after the writer, which may be reading it
            self._stack.callback(memory.close)
        self._writer = self._stack.enter_context(ImageWriter(store, body["name"], threads, rate))
        with usable(store.path):
            return {"free": free_bytes(store.packs.folder)}, ()

    def _heard(self) -> None:
        self._answers += 1

    def op_parent(self, body: Mapping[str, Any], _fds: list[int], request: Request) -> Answer:
        """The image that this one builds upon; nothing of it can go from here on."""
        with _telling(request, lambda: self._answers, 0):
            parent, refused = self._found_parent({(each[0], each[1], each[2]) for each in body["processes"]})
        return {"parent": parent.name if parent else None, "refused": refused}, ()

    def op_baseline(self, body: Mapping[str, Any], _fds: list[int], _request: Request) -> Answer:
        """What the parent has of one process: a descriptor."""
        parent = self._parent and self._parent[0]
        if parent is None:
            raise UsageError("there is no parent")
        fd = parent.baseline(int(body["pid"])).to_memfd()
        self._stack.callback(os.close, fd)
        return {}, [fd]

    def _found_parent(self, who: Collection[Identity]) -> tuple[Parent | None, str | None]:
        """Looked for once; the image that is written goes on with its key. Any other may be as broken as it likes."""
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

    def op_lend(self, body: Mapping[str, Any], fds: list[int], _request: Request) -> None:
        """What is staged of one process, or `partial`, copied for its image alone: held still from here on."""
        pid, arrived = int(body["pid"]), self._arriving.setdefault(int(body["pid"]), [])
        arrived += fds
        fds.clear()
        if len(arrived) == body["total"]:
            self._lent.take(pid, self._arriving.pop(pid), bool(body["partial"]))

    def op_lend_ring(self, body: Mapping[str, Any], fds: list[int], _request: Request) -> None:
        """What is to pass through a ring: the sealed table, and the ring, whose memory is held from here on."""
        pid, arrived = int(body["pid"]), self._arriving.setdefault(int(body["pid"]), [])
        arrived += fds
        fds.clear()
        if len(arrived) == body["total"]:
            table, *ring = self._arriving.pop(pid)
            try:
                self._streams.open(SealedTable.from_fd(table), ring, body["slot_bytes"])
            finally:
                close_all([table, *ring])

    def op_take(self, body: Mapping[str, Any], _fds: list[int], request: Request) -> None:
        """A window that lies in a slot; the slot is free when this returns. Raises StoreUnusable, UsageError."""
        if self._writer is None or self._parent is None:  # whose key the hashes are made with
            raise UsageError("no window is taken before it is known what the image builds upon")
        reach("image.take")
        counts, (slot, offset, size) = self._writer.counts, body["window"]
        with _telling(request, lambda: counts.total, self._streams.total_bytes()):
            self._streams.take(self._writer, (int(body["pid"]), body["device"]), (slot, offset, size))

    def op_withdraw(self, _body: Mapping[str, Any], _fds: list[int], _request: Request) -> None:
        """Of what was begun nothing is left, also if it is durable."""
        writer = self._writer
        with self._writing, usable(writer.store.path if writer else Path()):
            self._stack.close()
            if writer and self._written:
                writer.store.remove([self._written])

    def op_remove(self, body: Mapping[str, Any], fds: list[int], _request: Request) -> None:
        """One that a helper published before it died, by when it was taken: another of the name is let be."""
        store = _store(body, fds)
        with usable(store.path), suppress(NoSuchImage):
            found = store.images.manifest(body["name"])
            if found.created == body["created"]:
                store.remove([found.name], seals={found.name: found.seal()})

    def op_write(self, body: Mapping[str, Any], _fds: list[int], request: Request) -> Answer:
        """Durable when it returns. Raises StoreUnusable, ImageExists; then there is no such image."""
        assert self._writer
        counts, total = self._writer.counts, self._lent.total_bytes() + self._streams.total_bytes()
        with self._writing, self._kept_locked(), _telling(request, lambda: counts.total, total):
            began = time.monotonic()
            reach("image.write")
            tables = [*self._lent.tables(), *self._streams.tables()]
            stacks = {int(pid): process["stack"] for pid, process in body["processes"].items()}
            parent, refused = self._found_parent({(t.pid, t.start_time, stacks[t.pid]) for t in tables})
            self._writer.add(self._lent.additions(parent))
            written = {**self._lent.written(self._writer, parent), **self._streams.written(self._writer)}
            reach("image.commit")
            manifest = self._writer.commit(lambda contents: self._described(body, contents, tables, written))
            self._written = manifest.name
            self._streams.let_go()
            reach("image.published")
        log.info("image %s: %d bytes in %.2f s", manifest.name, manifest.bytes_written, time.monotonic() - began)
        return {**manifest.costs(), "parent_refused": refused}, ()

    @contextmanager
    def _kept_locked(self) -> Iterator[None]:
        """Nothing is held when it is over; but where the image is the only copy, the store's lock, until somebody has
        written that down."""
        try:
            yield
        except BaseException:
            self._stack.close()
            raise
        if not self._streams.tables():
            self._stack.close()

    def _described(
        self,
        facts: Mapping[str, Any],
        contents: Contents,
        tables: Sequence[SealedTable],
        written: ChunkNames,
    ) -> Manifest:
        assert self._writer and self._parent
        parent = self._parent[0]
        who = (facts["processes"][str(table.pid)] for table in tables)
        processes = (ImagedProcess(t, each["stack"], each["generation"]) for t, each in zip(tables, who, strict=True))
        return Manifest(
            name=self._writer.name,
            cut=Cut.DEVICE,
            created=facts["created"],
            job=facts["job"],
            backend=facts["backend"],
            simulated=facts["simulated"],
            versions={"gcr": __version__},
            models=facts["models"],
            processes=tuple(processes),
            packs=tuple(contents.packs),
            chunks=contents.chunks,
            hashes=contents.hashes,
            bytes_total=contents.counts.total,
            bytes_zero=contents.counts.zero,
            bytes_written=contents.counts.written,
            bytes_changed=parent.bytes_changed(written) if parent else None,
            parent=parent.name if parent else None,
            only_copy=bool(self._streams.tables()),
            timings=facts["timings"],
        )

    # ---- reading ------------------------------------------------------------------------------------------------

    def op_manifest(self, body: Mapping[str, Any], fds: list[int], request: Request) -> Answer:
        """Raises NoSuchImage, WrongImage, WrongKey, Damaged, StoreUnusable."""
        path = Path(body["store"])
        with usable(path), _telling(request, lambda: 0, 0):
            if is_none(path):
                raise without_store(NoSuchImage(f"no image {body['name']!r}"), path)
            return {"text": _store(body, fds).images.manifest(body["name"]).to_bytes().decode()}, ()

    def op_sync(self, body: Mapping[str, Any], _fds: list[int], _request: Request) -> None:
        """What was published outlives a crash of the machine. Raises StoreUnusable."""
        sync_images(Path(body["store"]))

    def op_open(self, body: Mapping[str, Any], fds: list[int], request: Request) -> None:
        """An image to be read; until we end nothing of it goes. Raises Damaged, WrongImage, NoSuchImage …"""
        with _telling(request, lambda: 0, 0):
            reader = ImageReader(_store(body, fds), body["name"], config.load().threads, self._came.append)
            self._reader = self._reading.enter_context(reader)
        _refuse_impossible(self._reader.manifest)
        if self._reader.manifest.seal().hex() != body["seal"]:
            raise WrongImage(f"image {body['name']} has just become another one")

    def op_slots(self, body: Mapping[str, Any], fds: list[int], _request: Request) -> None:
        """Memory that `read` reads into, of a device; what it had before is let go. Raises NotASegment."""
        slots = Slots(fds, body["slot_bytes"])
        if before := self._slots.pop(body["device"], None):
            before.close()
        self._slots[body["device"]] = slots

    def op_read(self, body: Mapping[str, Any], _fds: list[int], request: Request) -> None:
        """A window into a slot: all of it is there, and right, or an error. Several at once. Raises Damaged …"""
        slots = self._slots.get(body["device"])
        if self._reader is None or slots is None:
            raise UsageError("no image is open, or nothing to read it into")
        slot, offset, size = body["window"]
        with self._telling_all(request, self._reader):
            reach("image.read")
            self._reader.read(body["pid"], body["device"], offset, slots.slot(slot, size))

    def op_load(self, body: Mapping[str, Any], _fds: list[int], request: Request) -> Answer:
        """All of one process into memory of its own, or nothing of it. Raises Damaged, NoRoom …"""
        if self._reader is None:
            raise UsageError("no image is open")
        pid, reader = int(body["pid"]), self._reader
        tables = [process.table for process in reader.manifest.processes if process.table.pid == pid]
        _refuse_without_room(reader.manifest.name, tables)
        with self._telling_all(request, reader), ExitStack() as stack:
            lines = [stack.enter_context(_fresh(each)) for table in tables for each in by_device(table)]
            for line in lines:
                _fill(line, reader, pid)
            self._loaded[pid] = [fd for line in lines for fd in line.staged()]
        return {"descriptors": len(self._loaded[pid])}, ()

    def op_loaded(self, body: Mapping[str, Any], _fds: list[int], _request: Request) -> Answer:
        return {}, self._loaded[int(body["pid"])][body["offset"] : body["offset"] + body["limit"]]

    def _telling_all(self, request: Request, reader: ImageReader) -> AbstractContextManager[None]:
        """What was read of the image so far, whoever asked for it."""
        return _telling(request, lambda: sum(self._came), reader.manifest.bytes_total)


def _fill(line: FreshLine, reader: ImageReader, pid: int) -> None:
    (device,) = {part.device for part in line.table.segments}
    for offset, size in reader.lines[pid, device].windows(WINDOW_BYTES):
        reader.read(pid, device, offset, line.view(offset, size))


def _store(body: Mapping[str, Any], fds: Sequence[int], pulse: Callable[[], object] = lambda: None) -> Store:
    """As `StorePlace` names it. Raises UsageError, StoreUnusable, WrongKey …"""
    key = lent_key(fds, body["encrypted"])
    if key:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would have it, and what it is to hide
    return Store(Path(body["store"]), cipher_of(key), pulse)


@contextmanager
def _fresh(table: SealedTable) -> Iterator[FreshLine]:
    try:
        line = FreshLine(table)
    except OSError as error:
        if error.errno in NO_MEMORY:
            raise NoRoom(f"no host memory for the image: {error}", missing=None) from error
        raise
    try:
        yield line
    finally:
        line.close()


def _refuse_impossible(manifest: Manifest) -> None:
    """Its allocations lie in its segments, and no two in the same place: they are written to. Raises Damaged."""
    for process in manifest.processes:
        for table in by_device(process.table):
            end = 0
            for handle in sorted(table.handles, key=lambda each: each.offset):
                if handle.offset < end:
                    raise Damaged.of(manifest.name, "two allocations are in the same place")
                end = handle.offset + handle.spec.size
            if end > sum(segment.size for segment in table.segments):
                raise Damaged.of(manifest.name, "an allocation is where no memory is")


def _refuse_without_room(name: str, tables: Sequence[SealedTable]) -> None:
    needed = sum(part.size for table in tables for part in table.segments)
    if (missing := needed - available_host_bytes()) > 0:
        raise NoRoom(f"host memory is {units.size(missing)} short of what image {name} needs", missing=missing)


@contextmanager
def _telling(request: Request, done: Callable[[], int], total: int) -> Iterator[None]:
    """Says now and then how many bytes are done, to whoever still hears it."""
    over = threading.Event()

    def tell() -> None:
        with suppress(PeerGone):
            while not over.wait(TELL_EVERY):
                request.progress({"bytes": done(), "total_bytes": total})

    teller = threading.Thread(target=tell, name="gcr-progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
