"""Does this runtime keep the VRAM of memory that was unmapped and released, while its address stays reserved?

ROCm 7.0 does not, 7.2 does (its unmap leaves the kernel's mapping in place until the address is given back). Here for
a worker, which takes single handles out of a range, and for `gcr doctor`; a target's shim probes for itself, the same
way (shim/src/device/release.cpp). A worker has no third way: it gives the addresses of its ranges up with them, and
single handles of one are free only then.
"""

import ctypes
import mmap
import os
import time
from contextlib import ExitStack
from enum import Enum
from functools import partial
from typing import Protocol

from gcr.drain import DeviceMemory, HandleSpec
from gcr.vmm.ranges import quietly

PROBE_BYTES = 64 << 20
SETTLE_SECONDS = 0.5
_MAP_NORESERVE = 0x4000
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


class Release(Enum):
    """The way to give VRAM back while the address stays reserved."""

    PLAIN = "plain"  # unmap and release are enough
    MAP_OVER = "map_over"  # and an inaccessible mapping over the range, which drops the kernel's reference
    RESERVE_AGAIN = "reserve_again"  # and the address given back, and reserved again at once
    KEPT = "kept"  # nothing of these, or the address does not come back: a target could not be checkpointed


class Probed(Protocol):
    """The calls of a device that the probe needs: gcr_amd.memory.HipDevice."""

    granularity: int

    def enter(self) -> None: ...
    def memory(self) -> DeviceMemory: ...
    def reserve(self, size: int, wanted: int = 0) -> int: ...
    def unreserve(self, address: int, size: int) -> None: ...
    def create(self, size: int, spec: HandleSpec | None) -> object: ...
    def release(self, handle: object) -> None: ...
    def map(self, address: int, size: int, handle: object) -> None: ...
    def allow(self, address: int, size: int) -> None: ...
    def unmap_alone(self, address: int, size: int) -> None: ...


def probe(device: Probed) -> Release:
    """Allocate, unmap, release, and look at the device's own count. Raises DeviceFull without 64 MiB of room."""
    device.enter()
    size = -(-PROBE_BYTES // device.granularity) * device.granularity
    limit = device.memory().used + size // 2
    with ExitStack() as undo:
        address = device.reserve(size)
        undo.callback(quietly, "unreserve", partial(device.unreserve, address, size))
        _use_and_release(device, address, size)
        if device.memory().used < limit:
            return Release.PLAIN
        map_over(address, size)
        if _gone_soon(device, limit):
            return Release.MAP_OVER
        undo.pop_all()  # whether it comes back is what is asked
        came_back = _reserve_again(device, address, size, undo)
        return Release.RESERVE_AGAIN if came_back and _gone_soon(device, limit) else Release.KEPT


def _use_and_release(device: Probed, address: int, size: int) -> None:
    handle = device.create(size, None)
    try:
        device.map(address, size, handle)
        device.allow(address, size)
        device.unmap_alone(address, size)
    finally:
        device.release(handle)


def _reserve_again(device: Probed, address: int, size: int, undo: ExitStack) -> bool:
    device.unreserve(address, size)
    again = device.reserve(size, address)
    undo.callback(quietly, "unreserve", partial(device.unreserve, again, size))
    return again == address


def _gone_soon(device: Probed, limit: int) -> bool:
    """The kernel's count may follow a little later."""
    give_up = time.monotonic() + SETTLE_SECONDS
    while device.memory().used >= limit:
        if time.monotonic() >= give_up:
            return False
        time.sleep(0.005)
    return True


def map_over(address: int, size: int) -> None:
    """Replace what lies at an unmapped range; its reservation stays the runtime's. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    words = (ctypes.c_void_p(address), ctypes.c_size_t(size), 0, _FLAGS, -1, ctypes.c_long(0))
    if libc.mmap(*words) == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
