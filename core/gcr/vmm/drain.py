"""DataDrain over a VmmDriver: the data plane of one device, inside that device's worker, for every vendor.

Keeps the device's context for as long as it lives: host registrations die with it. Methods may be called from several
threads of the worker.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from gcr import units
from gcr.drain import DeviceMemory, DeviceRange, Handed, HandleSpec, Move, Span
from gcr.errors import DriverError, NoRoom, NotDeviceMemory
from gcr.hashing import CHUNK_BYTES, ChunkHashes, HashKey
from gcr.hashing.chunks import check_chunk_bytes
from gcr.vmm.driver import DeviceFull, Physical, VmmDriver
from gcr.vmm.hashing import Asked, Hasher
from gcr.vmm.lanes import StreamLane
from gcr.vmm.ranges import OwnedRange, map_side_by_side, quietly
from gcr.vmm.reads import Reads
from gcr.vmm.transfer import Copy, Paced, Part, StreamTransfer, device_to_host, host_to_device, never, within_device

HASH_SECONDS = 120.0


class VmmDrain:
    """Implements gcr.drain.DataDrain."""

    def __init__(self, driver: VmmDriver) -> None:
        self._driver = driver
        self._closed = False
        self._lock = threading.Lock()  # guards the three collections below; never held across a driver call
        self._ranges: dict[int, OwnedRange] = {}
        self._ballasts: set[PhysicalBallast] = set()
        self._pinned: set[int] = set()
        self._hasher = Hasher(driver)
        self._reads = Reads(driver, self._hasher.check_idle)

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
        with self._reads.none():
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
        with self._reads.none():
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
            have = self._driver.free_bytes()
            missing = max(wanted - have, self._driver.granularity)
            there, short, all_of_it = map(units.size, (have, missing, wanted))
            raise NoRoom(
                f"the device has {there} free, {short} short of the {all_of_it} wanted", missing=missing
            ) from None

    def _keep(self, undo: ExitStack, handle: Physical) -> Physical:
        undo.callback(quietly, "release", partial(self._driver.release, handle))
        return handle

    # ---- copies -----------------------------------------------------------------------------------------------

    def read(self, spans: Sequence[Span], paced: Paced = never) -> StreamTransfer:
        return self._start(((each.host, each.device, each.size) for each in spans), device_to_host, paced)

    def write(self, spans: Sequence[Span], paced: Paced = never) -> StreamTransfer:
        return self._start(((each.device, each.host, each.size) for each in spans), host_to_device, paced)

    read_paced, write_paced = read, write

    def move(self, moves: Sequence[Move]) -> StreamTransfer:
        return self._start(((each.target, each.source, each.size) for each in moves), within_device)

    def lane(self, slots: int) -> StreamLane | None:
        self._enter()
        return self._reads.lane(slots)

    def _start(self, parts: Iterable[Part], copy: Copy, paced: Paced = never) -> StreamTransfer:
        self._enter()
        return self._reads.start(parts, copy, paced)

    # ---- hashes -----------------------------------------------------------------------------------------------

    def hash(
        self, ranges: Sequence[DeviceRange], key: HashKey, chunk_bytes: int = CHUNK_BYTES, timeout: float = HASH_SECONDS
    ) -> ChunkHashes:
        check_chunk_bytes(chunk_bytes)
        give_up = time.monotonic() + timeout
        self._enter()
        with self._reads.hashing(timeout):
            owned = [self._owned(where) for where in ranges if where.size]
            return self._hasher.hashes(owned, Asked(key, chunk_bytes, give_up))

    def make_ready_to_hash(self, timeout: float = HASH_SECONDS) -> bool:
        give_up = time.monotonic() + timeout
        self._enter()
        with self._reads.hashing(timeout):
            return self._hasher.make_ready(give_up)

    # ---- room and host memory ---------------------------------------------------------------------------------

    def ballast(self, size: int) -> "PhysicalBallast":
        self._enter()
        rounded = -(-size // self._driver.granularity) * self._driver.granularity
        with self._or_no_room(rounded):
            handle = self._driver.create(rounded, None) if rounded else None
        ballast = PhysicalBallast(self._driver, handle, self._forget)
        with self._lock:
            self._ballasts.add(ballast)
        return ballast

    def _forget(self, ballast: "PhysicalBallast") -> None:
        with self._lock:
            self._ballasts.discard(ballast)

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
            self._ranges, self._ballasts, self._pinned = {}, set(), set()
        quietly("copies", self._reads.close)
        quietly("hash kernel", self._hasher.close)
        for owned in ranges:
            quietly("range", owned.dissolve)
        for ballast in ballasts:
            quietly("ballast", ballast.release)
        for address in pinned:
            quietly("unpin", partial(self._driver.unpin, address))
        self._closed = True
        self._driver.close()


class PhysicalBallast:
    """Physical memory without a mapping. Implements gcr.drain.Ballast."""

    def __init__(self, driver: VmmDriver, handle: Physical, forget: "Callable[[PhysicalBallast], None]") -> None:
        self._driver = driver
        self._handle = handle
        self._forget = forget
        self._lock = threading.Lock()

    def release(self) -> None:
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            self._driver.enter()
            self._driver.release(handle)
        self._forget(self)


@contextmanager
def _closing(handles: Sequence[Handed]) -> Iterator[None]:
    """Closes each descriptor once, after success and after failure."""
    try:
        yield
    finally:
        for each in handles:
            os.close(each.fd)


@contextmanager
def _naming(handed: Handed) -> Iterator[None]:
    """Adds the handle's id to the error of a refused descriptor."""
    try:
        yield
    except NotDeviceMemory as refused:
        raise NotDeviceMemory(f"handle {handed.spec.id}: {refused}") from None
