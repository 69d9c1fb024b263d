"""The CUDA driver as a table of checked calls: `cuda.cuMemCreate(size, prop, 0)` returns the value or raises.

Built on cuda.bindings >= 12.9.1, the first whose calls release the GIL; 12.9 and 13.x are alike in what is used
here. Nothing vendor-specific is loaded before the first call.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from gcr.errors import BackendMissing, DriverError

SUCCESS = 0
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
DEVICE_UNAVAILABLE = 46
OPERATING_SYSTEM = 304
INVALID_HANDLE = 400
NOT_FOUND = 500
NOT_READY = 600
UNKNOWN = 999

_INSTALL = "install the NVIDIA driver, and cuda-bindings >= 12.9.1 beside gcr"


@functools.cache
def bindings() -> Any:
    """The module `cuda.bindings.driver`. Raises BackendMissing when it is not installed."""
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as missing:
        raise BackendMissing(f"cuda.bindings cannot be imported: {missing}", hint=_INSTALL) from missing


def describe(call: str, result: int) -> str:
    """`cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)`."""
    try:
        name = bindings().CUresult(result).name
    except ValueError:  # a result newer than these bindings
        name = "CUresult"
    return f"{call}: {name} ({result})"


def failure(call: str, result: int) -> DriverError:
    return DriverError(describe(call, result))


def attempt(call: str, *arguments: object) -> tuple[int, Any]:
    """Make a driver call; its CUresult and its value (None, one value, or a tuple).

    Raises BackendMissing without a driver, or with one that lacks the call.
    """
    try:
        result, *values = getattr(bindings(), call)(*arguments)
    except AttributeError as missing:
        raise BackendMissing(f"these cuda.bindings have no {call}", hint=_INSTALL) from missing
    except RuntimeError as missing:  # no libcuda.so.1, or a symbol it does not have
        raise BackendMissing(f"{call}: {missing}", hint=_INSTALL) from missing
    return int(result), values[0] if len(values) == 1 else tuple(values) or None


class Driver:
    """Every driver call as a method that returns the value and raises DriverError otherwise."""

    def __getattr__(self, call: str) -> Callable[..., Any]:
        def checked(*arguments: object) -> Any:
            result, value = attempt(call, *arguments)
            if result != SUCCESS:
                raise failure(call, result)
            return value

        setattr(self, call, checked)
        return checked


cuda = Driver()


def initialise() -> None:
    """cuInit, which every process needs once and may repeat."""
    cuda.cuInit(0)


def enum(kind: str, member: str) -> Any:
    """A constant of the bindings, as `enum("CUmemLocationType", "CU_MEM_LOCATION_TYPE_DEVICE")`."""
    return getattr(getattr(bindings(), kind), member)
