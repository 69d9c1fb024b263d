"""The CUDA driver as a table of checked calls: `cuda.cuMemCreate(size, prop, 0)` returns the value or raises.

Built on cuda.bindings >= 12.9.1, the first whose calls release the GIL; 12.9 and 13.x are alike in what is used
here. Nothing vendor-specific is loaded before the first call.
"""

import importlib

from gcr.calls import SUCCESS, Bindings

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
DEVICE_UNAVAILABLE = 46
OPERATING_SYSTEM = 304
INVALID_HANDLE = 400
NOT_FOUND = 500
NOT_READY = 600
UNKNOWN = 999

__all__ = ["SUCCESS", "attempt", "bindings", "cuda", "describe", "enum", "failure", "initialise"]

cuda = Bindings(
    "cuda.bindings",
    lambda: importlib.import_module("cuda.bindings.driver"),
    results="CUresult",
    hint="install the NVIDIA driver, and cuda-bindings >= 12.9.1 beside gcr",
)
attempt, bindings, describe, enum, failure = cuda.attempt, cuda.module, cuda.describe, cuda.enum, cuda.failure


def initialise() -> None:
    """cuInit, which every process needs once and may repeat."""
    cuda.cuInit(0)
