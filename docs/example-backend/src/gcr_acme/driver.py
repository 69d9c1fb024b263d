"""The driver's calls through ctypes: `acme.acmeUnmap(address, size)` raises where the driver does not succeed.

ctypes gives the GIL up for the time of a call, as gcr asks of every backend: a worker's other threads run on.
"""

import ctypes
from ctypes import c_uint64
from enum import IntEnum
from functools import cache
from typing import Any

from gcr.calls import Calls
from gcr.errors import BackendMissing

LIBRARY = "libacme.so"


class Result(IntEnum):
    OK = 0
    INVALID = 1
    NO_MEMORY = 2
    NOT_READY = 3
    NOT_STARTED = 4
    NO_DEVICE = 5
    WRONG_STATE = 6
    FAULT = 7
    UNKNOWN = 8


@cache
def library() -> ctypes.CDLL:
    """The driver, started. Raises BackendMissing."""
    try:
        loaded = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise BackendMissing(f"{LIBRARY}: {error}", hint="install acme's driver") from None
    if result := loaded.acmeInit():
        raise BackendMissing(acme.describe("acmeInit", result), hint="is there an acme device in this machine?")
    return loaded


class Acme(Calls):
    def attempt(self, call: str, *arguments: Any) -> tuple[int, None]:
        """Addresses, sizes and handles are 64 bits wide: numbers are passed so unless they are ctypes' own."""
        wide = (c_uint64(each) if type(each) is int else each for each in arguments)
        return int(getattr(library(), call)(*wide)), None

    def describe(self, call: str, result: int) -> str:
        known = result in Result.__members__.values()
        return f"{call}: {f'ACME_{Result(result).name}' if known else 'result'} ({result})"


acme = Acme()
