"""The data plane of one NVIDIA device, inside that device's worker.

Keeps the device's primary context for as long as it lives: host registrations die with it. Methods may be called from
several threads of the worker; each makes the context current first, since that is a thread's own setting.
"""

import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from gcr.drain import DeviceMemory, DeviceRange, Handed, HandleSpec, Span
from gcr.errors import BackendMissing, DriverError, NoRoom, NotDeviceMemory
from gcr_nvidia import devices, uuids
from gcr_nvidia.driver import (
    INVALID_HANDLE,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    SUCCESS,
    UNKNOWN,
    attempt,
    cuda,
    failure,
    initialise,
)
from gcr_nvidia.ranges import OwnedRange, allocation_prop, granularity, map_side_by_side, posix_descriptor, quietly
from gcr_nvidia.transfer import Copy, StreamTransfer, device_to_host, host_to_device

log = logging.getLogger("gcr.nvidia")

SETTLE_SECONDS = 60.0
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE


def ordinal_of(uuid: str) -> int:
    """The driver's ordinal of a device. Raises BackendMissing."""
    for ordinal in range(cuda.cuDeviceGetCount()):
        if cuda.cuDeviceGetUuid(cuda.cuDeviceGet(ordinal)).bytes == uuids.raw(uuid):
            return ordinal
    raise BackendMissing(f"the driver shows no device {uuid}", hint="is it hidden by CUDA_VISIBLE_DEVICES?")


def check_kind(handed: Handed, simulated: bool) -> None:
    """Before the driver sees it: a descriptor from a stranger may be a pipe that blocks, or a file.

    The driver's are character devices, or have no type where it uses anonymous inodes; the simulator's are files.
    """
    mode = os.fstat(handed.fd).st_mode
    if stat.S_ISREG(mode) if simulated else stat.S_ISCHR(mode) or stat.S_IFMT(mode) == 0:
        return
    raise NotDeviceMemory(f"the descriptor of handle {handed.spec.id} is of type {stat.filemode(mode)[0]!r}")


class NvidiaDrain:
    """Implements gcr.drain.DataDrain."""

    def __init__(self, uuid: str) -> None:
        initialise()
        self._ordinal = ordinal_of(uuid)
        self._counter = devices.handle(uuid)
        self._simulated = devices.is_simulated(str(devices.nvml("nvmlDeviceGetName", self._counter)))
        self._device = cuda.cuDeviceGet(self._ordinal)
        self._context: Any = cuda.cuDevicePrimaryCtxRetain(self._device)
        self._lock = threading.Lock()  # guards the four collections below; never held across a driver call
        self._ranges: dict[int, OwnedRange] = {}
        self._transfers: list[StreamTransfer] = []
        self._ballasts: list[NvidiaBallast] = []
        self._pinned: set[int] = set()
        self._enter()
        self._granularity = granularity(self._ordinal)

    def _enter(self) -> None:
        if self._context is None:
            raise DriverError("this drain is closed")
        cuda.cuCtxSetCurrent(self._context)

    # ---- ranges -----------------------------------------------------------------------------------------------

    def adopt(self, handles: Sequence[Handed]) -> DeviceRange:
        with _closing(handles), ExitStack() as undo:
            self._enter()
            for each in handles:
                check_kind(each, self._simulated)
            imported = [self._keep(undo, self._import(each)) for each in handles]
            return self._map([each.spec for each in handles], imported, undo)

    def create(self, handles: Sequence[HandleSpec]) -> DeviceRange:
        self._enter()
        wanted = sum(spec.size for spec in handles)
        with self._or_no_room(wanted), ExitStack() as undo:
            made = [self._keep(undo, self._create(spec.size, spec)) for spec in handles]
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

    def _map(self, specs: Sequence[HandleSpec], handles: Sequence[Any], undo: ExitStack) -> DeviceRange:
        if not specs:
            return DeviceRange(0, 0, {})
        owned = map_side_by_side(self._ordinal, specs, handles)
        undo.pop_all()
        with self._lock:
            self._ranges[owned.address] = owned
        return owned.describe()

    def _import(self, handed: Handed) -> Any:
        result, handle = attempt("cuMemImportFromShareableHandle", handed.fd, posix_descriptor())
        if result in (INVALID_VALUE, INVALID_HANDLE, UNKNOWN):  # r580 answers "unknown" for /dev/null and files
            raise NotDeviceMemory(f"the driver does not know the descriptor of handle {handed.spec.id}")
        if result != SUCCESS:
            raise failure("cuMemImportFromShareableHandle", result)
        return handle

    def _create(self, size: int, spec: HandleSpec | None) -> Any:
        result, handle = attempt("cuMemCreate", size, allocation_prop(self._ordinal, spec), 0)
        if result == OUT_OF_MEMORY:
            raise _DeviceFull
        if result != SUCCESS:
            raise failure("cuMemCreate", result)
        return handle

    @contextmanager
    def _or_no_room(self, wanted: int) -> Iterator[None]:
        """Outermost, so that the device is counted after everything of this attempt was undone."""
        try:
            yield
        except _DeviceFull:
            free, _total = cuda.cuMemGetInfo()
            missing = max(wanted - int(free), self._granularity)
            raise NoRoom(
                f"the device has {int(free)} bytes free, {missing} bytes short of the {wanted} wanted", missing=missing
            ) from None

    @staticmethod
    def _keep(undo: ExitStack, handle: Any) -> Any:
        undo.callback(quietly, "cuMemRelease", partial(cuda.cuMemRelease, handle))
        return handle

    # ---- copies -----------------------------------------------------------------------------------------------

    def read(self, spans: Sequence[Span]) -> StreamTransfer:
        return self._start(spans, device_to_host)

    def write(self, spans: Sequence[Span]) -> StreamTransfer:
        return self._start(spans, host_to_device)

    def _start(self, spans: Sequence[Span], copy: Copy) -> StreamTransfer:
        self._enter()
        transfer = StreamTransfer(self._context, spans, copy)
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

    def ballast(self, size: int) -> "NvidiaBallast":
        self._enter()
        rounded = -(-size // self._granularity) * self._granularity
        with self._or_no_room(rounded):
            ballast = NvidiaBallast(self._enter, self._create(rounded, None) if rounded else None)
        with self._lock:
            self._ballasts.append(ballast)
        return ballast

    def pin(self, address: int, size: int) -> None:
        self._enter()
        cuda.cuMemHostRegister(address, size, _PORTABLE)
        with self._lock:
            self._pinned.add(address)

    def unpin(self, address: int) -> None:
        self._enter()
        cuda.cuMemHostUnregister(address)
        with self._lock:
            self._pinned.discard(address)

    def memory(self) -> DeviceMemory:
        return devices.memory(self._counter)

    def close(self) -> None:
        """Give back everything, the context last. Idempotent."""
        if self._context is None:
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
            quietly("unpin", partial(cuda.cuMemHostUnregister, address))
        self._context = None
        cuda.cuDevicePrimaryCtxRelease(self._device)


class NvidiaBallast:
    """Physical memory that nobody maps. Implements gcr.drain.Ballast."""

    def __init__(self, enter: Callable[[], None], handle: Any) -> None:
        self._enter = enter
        self._handle = handle
        self._lock = threading.Lock()

    def release(self) -> None:
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            self._enter()
            cuda.cuMemRelease(handle)


class _DeviceFull(Exception):
    """cuMemCreate found no room; becomes NoRoom once the attempt is undone."""


@contextmanager
def _closing(handles: Sequence[Handed]) -> Iterator[None]:
    """The descriptors are ours: each is closed once, whatever happens."""
    try:
        yield
    finally:
        for each in handles:
            os.close(each.fd)
