"""The way from an image to the device, through a ring of slots in host memory that never holds all of it.

    room       physical memory that the workers make; no other process knows of it
    streamed   window after window: read into a slot, each chunk compared with its name, copied to the device
    back       control state, mappings, gates: as in any restore (routes/restore.py)

The image is read once. Where its last chunk is damaged nothing of a process has been touched: the bytes copied before
lie in memory that is given up again, and the process is suspended as it was. So the control state comes back after
these bytes; beside a copy from host memory it comes back at the same time.

A slot belongs to one window at a time, and there either to the reader or to the worker. After an error a reader may
still hang in its disk, and write to a slot when that answers. Such a ring leaves the arena for good (`surrender`). The
arena's share of host memory does not bound a ring: jobs suspended there would keep this one from coming back.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event, Lock
from typing import Protocol

from msgspec import Struct, field

from gcr.engine.node import Course
from gcr.engine.progress import Copy, Meter
from gcr.engine.side_by_side import side_by_side
from gcr.errors import RolledBack
from gcr.peers.worker import WorkerPeer
from gcr.protocol.operations.operation import Done, Progress
from gcr.protocol.operations.worker import CopyName, Moved
from gcr.protocol.seqpacket import close_all

MOST_SLOTS, FEWEST_SLOTS = 4, 2  # one is read into while another is copied from
MOST_WINDOWS = 512  # in a slot: all of them are named in one message
TELL_EVERY = 0.1


class Arriving(Protocol):
    """A process, or its memory alone, that comes to devices. `owner`: names it in messages."""

    @property
    def pid(self) -> int: ...

    @property
    def copy_name(self) -> CopyName: ...

    @property
    def owner(self) -> str: ...

    def left(self, device: str) -> str:
        """Returns the device that it left, given the one it comes to."""
        ...


Inlet = tuple[Arriving, WorkerPeer]  # the latter of a device that it comes to
Window = tuple[int, int]  # offset on the line, and size


class Flowing(Protocol):
    """An image that is read, or a part of it. `device`: that which the process left. Raises Damaged, StoreUnusable."""

    def size(self, pid: int, device: str) -> int:
        """Returns the bytes of a process on a device."""
        ...

    def windows(self, pid: int, device: str, most: int) -> Iterator[Window]:
        """Yields windows of at most `most` bytes: every byte once."""
        ...

    def lend_slots(self, device: str, slot_bytes: int, fds: Sequence[int]) -> None:
        """Lends the slots that `read` fills."""
        ...

    def read(self, pid: int, device: str, slot: int, windows: Sequence[Window]) -> None:
        """Fills a slot with windows, one behind the other. Each chunk has its name when this returns."""
        ...


class Imaged(Flowing, Protocol):
    """An image of the job, for a restore."""

    def tables(self, pid: int) -> list[int]:
        """Returns sealed tables without segments, one a device; the caller's."""
        ...

    def whole(self, pid: int) -> list[int]:
        """Returns all of a process in host memory, as a checkpoint stages it; the caller's. Raises NoRoom."""
        ...

    def ahead(self, pid: int, device: str, worker: WorkerPeer) -> str | None:
        """Returns the hold of memory that the worker has filled with this image already, once; None without any."""
        ...

    def came(self, pid: int, device: str) -> Moved | None:
        """Returns the copy to such memory where it is a part of this restore; None for that of a migration."""
        ...


class Inflow(Struct):
    """One loading of an image. `copy_s`: the longest copy of a slot. `done`: bytes and seconds of each copy."""

    image: Flowing
    course: Course
    slot_bytes: int
    copy_s: float
    done: dict[Copy, Moved] = field(default_factory=dict)
    _failed: Event = field(default_factory=Event)

    def run(self, inlets: Sequence[Inlet]) -> None:
        """Loads all devices at once, and on each one process after the other: a device has one ring at a time."""
        by_device: dict[str, list[Inlet]] = {}
        for target, worker in inlets:
            by_device.setdefault(worker.device, []).append((target, worker))
        sizes = {(t.pid, worker.device): self.image.size(t.pid, t.left(worker.device)) for t, worker in inlets}
        meter = Meter(self.course, "reading", sizes)
        meter.start()
        side_by_side(partial(self._one_device, each, meter) for each in by_device.values())

    def _one_device(self, inlets: Sequence[Inlet], meter: Meter) -> None:
        for target, worker in inlets:
            if not self._failed.is_set():
                with self._ending_the_rest():
                    self._one_line(target, worker, meter)

    def _one_line(self, target: Arriving, worker: WorkerPeer, meter: Meter) -> None:
        began, device, copy = time.monotonic(), target.left(worker.device), (target.pid, worker.device)
        left = batches(self.image.windows(target.pid, device, self.slot_bytes), self.slot_bytes)
        windows = _Windows(left, self._failed, partial(meter.at, copy))
        slots, fds = worker.rings.make(
            target.copy_name, target.owner, self.slot_bytes, MOST_SLOTS, FEWEST_SLOTS, beyond=True
        )
        try:
            self.image.lend_slots(device, self.slot_bytes, fds)
        finally:
            close_all(fds)
        side_by_side(partial(self._one_slot, target, worker, slot, windows) for slot in range(slots))
        if self._failed.is_set():  # on another device, which raises the error
            return
        if windows.bytes != meter.sizes[copy]:
            text = f"{windows.bytes} bytes of process {target.pid} were copied, there are {meter.sizes[copy]}"
            raise RolledBack(text)
        worker.rings.drop(target.copy_name)
        self.done[copy] = Moved(windows.bytes, time.monotonic() - began)
        meter.at(copy, Done(windows.bytes))

    def _one_slot(self, target: Arriving, worker: WorkerPeer, slot: int, windows: "_Windows") -> None:
        device = target.left(worker.device)
        with self._ending_the_rest():
            for some in windows:
                self.image.read(target.pid, device, slot, some)
                worker.rings.empty(target.copy_name, slot, some, self.course.left(self.copy_s))
                windows.add(sum(size for _, size in some))

    @contextmanager
    def _ending_the_rest(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._failed.set()
            raise


class _Windows(Struct):
    """Windows, given out slot by slot to several threads; none after a failure. `bytes`: on the device by now."""

    _left: Iterator[Sequence[Window]]
    _failed: Event
    _tell: Progress
    bytes: int = 0
    _told: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def __iter__(self) -> Iterator[Sequence[Window]]:
        return self

    def __next__(self) -> Sequence[Window]:
        with self._lock:
            if self._failed.is_set():
                raise StopIteration
            return next(self._left)

    def add(self, size: int) -> None:
        with self._lock:
            self.bytes += size
            now = time.monotonic()
            if now - self._told >= TELL_EVERY:
                self._told = now
                self._tell(Done(self.bytes))


def batches(windows: Iterable[Window], most: int) -> Iterator[Sequence[Window]]:
    """Yields the windows, in order, together as long as a slot of `most` bytes has room for them.

    Windows of scattered chunks are small: a call for each takes longer than its bytes.
    """
    some, size = list[Window](), 0
    for window in windows:
        if some and (size + window[1] > most or len(some) == MOST_WINDOWS):
            yield some
            some, size = [], 0
        some.append(window)
        size += window[1]
    if some:
        yield some
