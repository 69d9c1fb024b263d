"""The HIP runtime as a table of checked calls: `hip.hipMemCreate(size, prop, 0)` returns the value or raises.

Built on hip-python 7.2 and 10, which differ in two ways that show here: how they find the library (7.2 by the loader's
path alone; 10 also by ROCM_PATH), and which arguments are results (hipGetDeviceProperties, which is not used).
Both load the library at the first call and raise RuntimeError when it, or a symbol of it, is missing.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from gcr.errors import BackendMissing, DriverError

SUCCESS = 0
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NO_DEVICE = 100
INVALID_DEVICE = 101
INVALID_HANDLE = 400
NOT_READY = 600
NOT_SUPPORTED = 801
UNKNOWN = 999

OLDEST_RUNTIME = (5, 4)
"""The first release whose hipMemAllocationProp is laid out as declared here and in the shim."""

_INSTALL = "install ROCm's runtime (libamdhip64.so), and hip-python >= 7.2 beside gcr: pip install 'gpu-cr[amd]'"


@functools.cache
def bindings() -> Any:
    """hip-python's module of the runtime. Raises BackendMissing when it is not installed."""
    try:
        return importlib.import_module("hip").hip  # "hip.hip" is a name, but no module of its own, since 10
    except (ImportError, AttributeError) as missing:
        raise BackendMissing(f"hip-python cannot be imported: {missing}", hint=_INSTALL) from missing


def describe(call: str, result: int) -> str:
    """`hipMemCreate: hipErrorOutOfMemory (2)`."""
    try:
        name = bindings().hipError_t(result).name
    except ValueError:  # a result newer than these bindings
        name = "hipError_t"
    return f"{call}: {name} ({result})"


def failure(call: str, result: int) -> DriverError:
    return DriverError(describe(call, result))


def attempt(call: str, *arguments: object) -> tuple[int, Any]:
    """Make a call; its hipError_t and its value (None, one value, or a tuple).

    Raises BackendMissing without a runtime, or with one that lacks the call.
    """
    try:
        result, *values = getattr(bindings(), call)(*arguments)
    except AttributeError as missing:
        raise BackendMissing(f"these bindings have no {call}", hint=_INSTALL) from missing
    except RuntimeError as missing:  # no libamdhip64.so, or a symbol it does not have
        raise BackendMissing(f"{call}: {missing}", hint=_INSTALL) from missing
    return int(result), values[0] if len(values) == 1 else tuple(values) or None


class Runtime:
    """Every call as a method that returns the value and raises DriverError otherwise."""

    def __getattr__(self, call: str) -> Callable[..., Any]:
        def checked(*arguments: object) -> Any:
            result, value = attempt(call, *arguments)
            if result != SUCCESS:
                raise failure(call, result)
            return value

        setattr(self, call, checked)
        return checked


hip = Runtime()


def version() -> tuple[int, int, int]:
    """Of the runtime: major, minor, patch."""
    number = int(hip.hipRuntimeGetVersion())
    return number // 10_000_000, number // 100_000 % 100, number % 100_000


def initialise() -> None:
    """hipInit, which every process needs once and may repeat. Raises BackendMissing for one that is too old."""
    found = version()
    if found[:2] < OLDEST_RUNTIME:
        wanted = ".".join(map(str, OLDEST_RUNTIME))
        raise BackendMissing(f"the HIP runtime is {found[0]}.{found[1]}, older than {wanted}", hint=_INSTALL)
    result, _ = attempt("hipInit", 0)
    if result in (NO_DEVICE, INVALID_DEVICE):
        raise BackendMissing("the HIP runtime sees no device", hint="is /dev/kfd there, and may you open it?")
    if result != SUCCESS:
        raise failure("hipInit", result)


def enum(kind: str, member: str) -> Any:
    """A constant of the bindings, as `enum("hipMemLocationType", "hipMemLocationTypeDevice")`."""
    return getattr(getattr(bindings(), kind), member)
