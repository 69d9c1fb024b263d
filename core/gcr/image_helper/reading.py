"""The operations that read one image: `open`, then `lend_slots` and `read`, or `load` and `loaded`.

A helper that fills memory of a job that is coming opens one image after the other: `open` · `lacking` · `lend_slots` ·
`read` … · `brought`.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from msgspec import Struct, field

from gcr import config, units
from gcr.errors import NoRoom, UsageError
from gcr.faults import reach
from gcr.image.chunks.lines import FreshLine, Slots, by_device
from gcr.image.files.manifest import Manifest
from gcr.image.read.reader import ImageReader
from gcr.image_helper.answering import store_of, telling
from gcr.image_helper.ondevice import OnDevice
from gcr.imageerrors import Damaged, WrongImage
from gcr.memory.hostmemory import available_host_bytes
from gcr.memory.layout import SealedTable
from gcr.memory.memfiles import NO_MEMORY
from gcr.protocol.batches import Incoming
from gcr.protocol.channel import Request
from gcr.protocol.operations import image as ops
from gcr.protocol.operations.operation import Answer, Handlers
from gcr.protocol.seqpacket import close_all

WINDOW_BYTES = 1 << 30  # of a line in memory of the helper's own


class Reading(Struct):
    """The image that is read. `_came`: bytes read, as they come, by several threads.

    `_stack` is closed by the next `open` alone: else closing it would wait for a store that hangs.
    """

    _stack: ExitStack = field(default_factory=ExitStack)
    _reader: ImageReader | None = None
    _slots: dict[str, Slots] = field(default_factory=dict)  # by the device of the image
    _came: list[int] = field(default_factory=list)
    _loaded: dict[int, list[int]] = field(default_factory=dict)  # descriptors by pid
    _arriving: Incoming = field(default_factory=Incoming)  # descriptors by device
    _on_device: OnDevice = field(default_factory=OnDevice)

    def operations(self) -> Handlers:
        return {
            ops.Open: self._open,
            ops.LendSlots: lambda asked, fds, _request: self._lend_slots(asked, fds),
            ops.Read: lambda asked, _fds, request: self._read(asked, request),
            ops.Lacking: lambda asked, _fds, request: Answer(self._lacking(asked, request)),
            ops.Brought: lambda asked, _fds, _request: self._on_device.brought(asked.pid, asked.device),
            ops.Load: lambda asked, _fds, request: Answer(self._load(asked.pid, request)),
            ops.Loaded: lambda asked, _fds, _request: Answer(fds=self._some_loaded(asked), kept=True),
        }

    def _open(self, asked: ops.Open, fds: list[int], request: Request) -> None:
        """Opens an image; no file of it goes until the helper ends, or opens the next.

        Raises Damaged, WrongImage, NoSuchImage …
        """
        self._reader = None
        self._stack.close()
        with telling(request, lambda: 0, 0):
            reader = ImageReader(store_of(asked, fds), asked.name, config.load().threads, self._came.append)
            self._reader = self._stack.enter_context(reader)
        refuse_impossible(self._reader.manifest)
        if self._reader.manifest.seal().hex() != asked.seal:
            raise WrongImage(f"image {asked.name} has just become another one")

    def _lend_slots(self, asked: ops.LendSlots, fds: list[int]) -> None:
        """Takes the memory that `read` fills for a device, once all of it has come. Raises NotASegment."""
        if (arrived := self._arriving.add(asked.device, fds, asked.offset, asked.total)) is not None:
            try:
                self._take_slots(asked, arrived)
            finally:
                close_all(arrived)

    def _take_slots(self, asked: ops.LendSlots, fds: Sequence[int]) -> None:
        """Maps slots, and unmaps those that the device had before."""
        slots = Slots(fds, asked.slot_bytes)
        if before := self._slots.pop(asked.device, None):
            before.close()
        self._slots[asked.device] = slots

    def _read(self, asked: ops.Read, request: Request) -> None:
        """Reads windows into a slot, all of them compared, or raises Damaged … Several calls may run at once."""
        slots = self._slots.get(asked.device)
        if self._reader is None or slots is None:
            raise UsageError("no image is open, or nothing to read it into")
        memory = slots.entered(asked.slot, sum(size for _, size in asked.windows))
        with self._telling_all(request, self._reader):
            reach("image.read")
            self._reader.read_windows(asked.pid, asked.device, asked.windows, memory)

    def _lacking(self, asked: ops.Lacking, request: Request) -> ops.Windows:
        """Returns the windows that differ from what `brought` has told of. Raises UsageError, Damaged …"""
        if self._reader is None:
            raise UsageError("no image is open")
        with self._telling_all(request, self._reader):
            found = self._on_device.lacking(self._reader, (asked.pid, asked.device), asked.kept, asked.most)
            return ops.Windows(tuple(found))

    def _load(self, pid: int, request: Request) -> ops.LoadedCount:
        """Reads all of one process into memory of the helper's own, or none of it. Raises Damaged, NoRoom …"""
        if self._reader is None:
            raise UsageError("no image is open")
        reader = self._reader
        tables = [process.table for process in reader.manifest.processes if process.table.pid == pid]
        _refuse_without_room(reader.manifest.name, tables)
        with self._telling_all(request, reader), ExitStack() as stack:
            lines = [stack.enter_context(_fresh(each)) for table in tables for each in by_device(table)]
            for line in lines:
                _fill(line, reader, pid)
            self._loaded[pid] = [fd for line in lines for fd in line.staged()]
        return ops.LoadedCount(len(self._loaded[pid]))

    def _some_loaded(self, asked: ops.Loaded) -> list[int]:
        """Returns some of the descriptors of a process that was loaded. Raises UsageError for any other."""
        if asked.pid not in self._loaded:
            raise UsageError(f"process {asked.pid} was not loaded")
        return self._loaded[asked.pid][asked.offset : asked.offset + asked.limit]

    def _telling_all(self, request: Request, reader: ImageReader) -> AbstractContextManager[None]:
        """Tells how many bytes of the image all calls together have read."""
        return telling(request, lambda: sum(self._came), reader.manifest.costs.bytes_total)


def _fill(line: FreshLine, reader: ImageReader, pid: int) -> None:
    (device,) = {part.device for part in line.table.segments}
    for offset, size in reader.lines[pid, device].windows(WINDOW_BYTES):
        reader.read(pid, device, offset, line.view(offset, size))


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


def refuse_impossible(manifest: Manifest) -> None:
    """Raises Damaged unless each allocation lies in its segments, and no two overlap: they are written to."""
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
