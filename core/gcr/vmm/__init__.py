"""The data plane of all vendors with virtual memory management in their driver, over a few calls of each vendor."""

from gcr.vmm.drain import VmmDrain
from gcr.vmm.driver import (
    CopyStream,
    DeviceFull,
    Event,
    HashKernel,
    NoHashKernel,
    Physical,
    RunsHashKernel,
    VmmDriver,
    WaitsForEvents,
)

__all__ = [
    "CopyStream",
    "DeviceFull",
    "Event",
    "HashKernel",
    "NoHashKernel",
    "Physical",
    "RunsHashKernel",
    "VmmDrain",
    "VmmDriver",
    "WaitsForEvents",
]
