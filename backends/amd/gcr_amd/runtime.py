"""The HIP runtime as a table of checked calls: `hip.hipMemCreate(size, prop, 0)` returns the value or raises.

Built on hip-python 7.2 and 10, which differ in two ways that show here: how they find the library (7.2 by the loader's
path alone; 10 also by ROCM_PATH), and which arguments are results (hipGetDeviceProperties, which is not used).
Both load the library at the first call and raise RuntimeError when it, or a symbol of it, is missing.
"""

import importlib
import re
from typing import Any

from gcr.calls import SUCCESS, Bindings
from gcr.errors import BackendMissing

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NO_DEVICE = 100
INVALID_DEVICE = 101
INVALID_HANDLE = 400
NOT_READY = 600
UNKNOWN = 999

OLDEST_RUNTIME = (5, 4)
"""The first release whose hipMemAllocationProp is laid out as declared here and in the shim."""

__all__ = ["SUCCESS", "Hip", "attempt", "bindings", "describe", "enum", "failure", "hip", "initialise", "version"]

_INSTALL = "install ROCm's runtime (libamdhip64.so), and beside gcr: pip install 'hip-python>=7.2.2'"
_BYTES = re.compile(r"""\bb(['"])(.*?)\1""")


class Hip(Bindings):
    """hip-python says what it cannot load as Python writes bytes: `b'libamdhip64.so'`."""

    def attempt(self, call: str, *arguments: Any) -> tuple[int, Any]:
        try:
            return super().attempt(call, *arguments)
        except BackendMissing as missing:
            raise BackendMissing(_BYTES.sub(r"\2", missing.message), hint=missing.hint) from missing


hip = Hip(
    "hip-python",
    lambda: importlib.import_module("hip").hip,  # "hip.hip" is a name, but no module of its own, since 10
    results="hipError_t",
    hint=_INSTALL,
)
attempt, bindings, describe, enum, failure = hip.attempt, hip.module, hip.describe, hip.enum, hip.failure


def version() -> tuple[int, int, int]:
    """Returns the runtime's version: major, minor, patch."""
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
