"""Evidence by doing, for a backend's probe: where a driver has no attribute that says what it can, it is tried."""

import os
from collections.abc import Callable
from typing import TypeVar

from gcr.drain import HandleSpec
from gcr.probing import Lacking
from gcr.vmm.driver import DeviceFull, VmmDriver

T = TypeVar("T")


def with_room(trial: Callable[[], T]) -> T:
    """Returns the result of a trial. Raises Lacking where the device has no room for it."""
    try:
        return trial()
    except DeviceFull:
        raise Lacking("the first device has no room to try it") from None


def exports(device: VmmDriver) -> str:
    """Makes the least memory there is, exports it, and takes it back. Raises Lacking, DriverError."""
    device.enter()
    handle = with_room(lambda: device.create(device.granularity, HandleSpec(1, device.granularity)))
    try:
        os.close(device.export(handle))
    finally:
        device.release(handle)
    return "memory exports as file descriptors"
