"""Does this runtime keep the VRAM of memory that was unmapped and released, while its address stays reserved?

ROCm 7.0 does not, 7.2 does (its unmap leaves the kernel's mapping in place until the address is given back). What a
target does about it is chosen by the shim, which probes the same way; this is for `gcr doctor`, and to verify.
"""

from contextlib import ExitStack
from enum import Enum
from functools import partial

from gcr.vmm.ranges import quietly
from gcr_amd.memory import HipDevice

PROBE_BYTES = 64 << 20


class Release(Enum):
    """How VRAM is given back while the address stays reserved."""

    PLAIN = "plain"  # unmap and release are enough
    MAP_OVER = "map_over"  # and an inaccessible mapping over the range, which drops the kernel's reference


def probe(device: HipDevice) -> Release:
    """Allocate, unmap, release, and look at the device's own count. Raises DeviceFull without 64 MiB of room."""
    device.enter()
    size = -(-PROBE_BYTES // device.granularity) * device.granularity
    with ExitStack() as undo:
        before = device.memory().used
        address = device.reserve(size)
        undo.callback(quietly, "unreserve", partial(device.unreserve, address, size))
        handle = device.create(size, None)
        try:
            device.map(address, size, handle)
            device.allow(address, size)
            device.unmap(address, size)
        finally:
            device.release(handle)
        kept = device.memory().used - before
    return Release.MAP_OVER if kept >= size // 2 else Release.PLAIN
