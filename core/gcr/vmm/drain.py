"""DataDrain over a VmmDriver: the data plane of one device, inside that device's worker, for every vendor.

Keeps the device's context for as long as it lives: host registrations die with it. Methods may be called from several
threads of the worker.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from gcr.drain import DeviceMemory, DeviceRange, Handed, HandleSpec, Span
from gcr.errors import DriverError, NoRoom, NotDeviceMemory
from gcr.vmm.driver import DeviceFull, Physical, VmmDriver
from gcr.vmm.ranges import OwnedRange, map_side_by_side, quietly
from gcr.vmm.transfer import Copy, StreamTransfer, device_to_host, host_to_device

SETTLE_SECONDS = 60.0


class VmmDrain:
    """Implements gcr.drain.DataDrain."""

    def __init__(self, driver: VmmDriver) -> None:
        self._driver = driver
        self._closed = False
        self._lock = threading.Lock()  # guards the four collections below; never held across a driver call
        self._ranges: dict[int, OwnedRange] = {}
        self._transfers: list[StreamTransfer] = []
        self._ballasts: list[PhysicalBallast] = []
        self._pinned: set[int] = set()

    def _enter(self) -> None:
        if self._closed:
            raise DriverError("this drain is closed")
        self._driver.enter()

    # ---- ranges -----------------------------------------------------------------------------------------------

    def adopt(self, handles: Sequence[Handed]) -> DeviceRange:
        with _closing(handles), ExitStack() as undo:
            self._enter()
            for each in handles:
                with _naming(each):
                    self._driver.check_descriptor(each.fd)
            imported = [self._keep(undo, self._import(each)) for each in handles]
            return self._map([each.spec for each in handles], imported, undo)

    def create(self, handles: Sequence[HandleSpec]) -> DeviceRange:
        self._enter()
        wanted = sum(spec.size for spec in handles)
        with self._or_no_room(wanted), ExitStack() as undo:
            made = [self._keep(undo, self._driver.create(spec.size, spec)) for spec in handles]
            return self._map(handles, made, undo)

    def forget(self, where: DeviceRange, ids: Sequence[int]) -> None:
        self._enter()
        self._settle()
        self._owned(where).drop(ids)

    def export(self, where: DeviceRange, ids: Sequence[int]) -> Sequence[Handed]:
        self._enter()
        owned = self._owned(where)
        with ExitStack() as undo:
            out: list[Handed] = []
            for id in ids:
                out.append(Handed(owned.piece(id).spec, owned.export(id)))
                undo.callback(os.close, out[-1].fd)
            undo.pop_all()
        return out

    def release(self, where: DeviceRange) -> None:
        self._enter()
        self._settle()
        with self._lock:
            owned = self._ranges.pop(where.address, None)
        if owned is not None:
            owned.dissolve()

    def _owned(self, where: DeviceRange) -> OwnedRange:
        with self._lock:
            owned = self._ranges.get(where.address)
        if owned is None:
            raise DriverError(f"no range at {where.address:#x}: it was released, or is another drain's")
        return owned

    def _map(self, specs: Sequence[HandleSpec], handles: Sequence[Physical], undo: ExitStack) -> DeviceRange:
        if not specs:
            return DeviceRange(0, 0, {})
        owned = map_side_by_side(self._driver, specs, handles)
        undo.pop_all()
        with self._lock:
            self._ranges[owned.address] = owned
        return owned.describe()

    def _import(self, handed: Handed) -> Physical:
        with _naming(handed):
            return self._driver.import_(handed.fd)

    @contextmanager
    def _or_no_room(self, wanted: int) -> Iterator[None]:
        """Outermost, so that the device is counted after everything of this attempt was undone."""
        try:
            yield
        except DeviceFull:
            free = self._driver.free_bytes()
            missing = max(wanted - free, self._driver.granularity)
            text = f"the device has {free} bytes free, {missing} bytes short of the {wanted} wanted"
            raise NoRoom(text, missing=missing) from None

    def _keep(self, undo: ExitStack, handle: Physical) -> Physical:
        undo.callback(quietly, "release", partial(self._driver.release, handle))
        return handle

    # ---- copies -----------------------------------------------------------------------------------------------

    def read(self, spans: Sequence[Span]) -> StreamTransfer:
        return self._start(spans, device_to_host)

    def write(self, spans: Sequence[Span]) -> StreamTransfer:
        return self._start(spans, host_to_device)

    def _start(self, spans: Sequence[Span], copy: Copy) -> StreamTransfer:
        self._enter()
        transfer = StreamTransfer(self._driver, spans, copy)
        with self._lock:
            self._transfers = [each for each in self._transfers if each.running]
            self._transfers.append(transfer)
        return transfer

    def _settle(self) -> None:
        """Unmapping under a copy in flight would break the context, and every registration with it."""
        with self._lock:
            running = [each for each in self._transfers if each.running]
        for transfer in running:
            transfer.wait(SETTLE_SECONDS)

    # ---- room and host memory ---------------------------------------------------------------------------------

    def ballast(self, size: int) -> "PhysicalBallast":
        self._enter()
        rounded = -(-size // self._driver.granularity) * self._driver.granularity
        with self._or_no_room(rounded):
            ballast = PhysicalBallast(self._driver, self._driver.create(rounded, None) if rounded else None)
        with self._lock:
            self._ballasts.append(ballast)
        return ballast

    def pin(self, address: int, size: int) -> None:
        self._enter()
        self._driver.pin(address, size)
        with self._lock:
            self._pinned.add(address)

    def unpin(self, address: int) -> None:
        self._enter()
        self._driver.unpin(address)
        with self._lock:
            self._pinned.discard(address)

    def memory(self) -> DeviceMemory:
        return self._driver.memory()

    def close(self) -> None:
        """Give back everything, the context last. Idempotent."""
        if self._closed:
            return
        self._enter()
        with self._lock:
            ranges, ballasts, pinned = list(self._ranges.values()), self._ballasts, list(self._pinned)
            self._ranges, self._ballasts, self._pinned = {}, [], set()
        quietly("copies", self._settle)
        for owned in ranges:
            quietly("range", owned.dissolve)
        for ballast in ballasts:
            quietly("ballast", ballast.release)
        for address in pinned:
            quietly("unpin", partial(self._driver.unpin, address))
        self._closed = True
        self._driver.close()


class PhysicalBallast:
    """Physical memory that nobody maps. Implements gcr.drain.Ballast."""

    def __init__(self, driver: VmmDriver, handle: Physical) -> None:
        self._driver = driver
        self._handle = handle
        self._lock = threading.Lock()

    def release(self) -> None:
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            self._driver.enter()
            self._driver.release(handle)


@contextmanager
def _closing(handles: Sequence[Handed]) -> Iterator[None]:
    """The descriptors are ours: each is closed once, whatever happens."""
    try:
        yield
    finally:
        for each in handles:
            os.close(each.fd)


@contextmanager
def _naming(handed: Handed) -> Iterator[None]:
    """A refused descriptor is reported with the handle it was said to be."""
    try:
        yield
    except NotDeviceMemory as refused:
        raise NotDeviceMemory(f"handle {handed.spec.id}: {refused}") from None
