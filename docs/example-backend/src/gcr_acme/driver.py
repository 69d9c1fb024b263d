"""The driver's calls through ctypes: `call` for those that must succeed, `attempt` for those whose result is looked at.

ctypes gives the GIL up for the time of a call, as gcr asks of every backend: a worker's other threads run on.
"""

import ctypes
from ctypes import byref, c_double, c_int, c_size_t, c_uint8, c_uint64, c_void_p
from enum import IntEnum
from functools import cache
from typing import Any

from gcr.errors import BackendMissing, DriverError

LIBRARY = "libacme.so"

__all__ = ["Result", "attempt", "byref", "c_double", "c_int", "c_size_t", "c_uint8", "c_uint64", "c_void_p", "call"]


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
        raise BackendMissing(f"acmeInit: {name_of(result)}", hint="is there an acme device in this machine?")
    return loaded


def attempt(name: str, *arguments: Any) -> int:
    """The result. Addresses, sizes and handles are 64 bits wide: numbers are passed so unless they are ctypes' own."""
    wide = (c_uint64(each) if type(each) is int else each for each in arguments)
    return int(getattr(library(), name)(*wide))


def call(name: str, *arguments: Any) -> None:
    """Raises DriverError for anything but success."""
    if result := attempt(name, *arguments):
        raise failure(name, result)


def failure(name: str, result: int) -> DriverError:
    return DriverError(f"{name}: {name_of(result)}")


def name_of(result: int) -> str:
    return f"ACME_{Result(result).name}" if result in Result.__members__.values() else f"result {result}"
