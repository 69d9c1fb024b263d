"""The data plane for every vendor whose driver has virtual memory management, over the vendor's own few calls."""

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
]
