"""A vendor's C library by ctypes, for victims: importing its Python package would take 100 ms of CPU, a hundred times.

Written without anything of gcr's: victims are the oracle.
"""

import ctypes
from collections.abc import Mapping
from typing import Any


class Failed(Exception):
    """A call that did not succeed; `code` is the library's number."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"victim: {call} returned {code}")
        self.code = code


class Library:
    """Calls as attributes. Each takes the C function's arguments in order, but for those that the function fills in.

    It returns these: nothing, a value, or a tuple. `calls` has the types of all; `out(type)` is one that is filled in.
    The library is loaded with the first call.
    """

    def __init__(self, file: str, calls: Mapping[str, tuple[Any, ...]]) -> None:
        self.calls, self._file = calls, file
        self._library: ctypes.CDLL | None = None

    def __getattr__(self, name: str) -> Any:
        """Makes a call an attribute. Raises AttributeError for one that is not listed, or not in the library."""
        if name not in self.calls:
            raise AttributeError(name)
        self._library = self._library or ctypes.CDLL(self._file)
        types = self.calls[name]
        plain = (ctypes.POINTER(each.type) if isinstance(each, out) else each for each in types)
        ways = tuple((OUT,) if isinstance(each, out) else (IN,) for each in types)
        made = ctypes.CFUNCTYPE(ctypes.c_int, *plain)((name, self._library), ways)
        made.errcheck = checked  # type: ignore[assignment]
        made.__name__ = name
        setattr(self, name, made)
        return made

    def attempt(self, name: str, *arguments: Any) -> tuple[int, Any]:
        """Returns the call's number, 0 for success, and what it fills in."""
        try:
            return 0, getattr(self, name)(*arguments)
        except Failed as failed:
            return failed.code, None


IN, OUT = 1, 2  # of ctypes


class out:
    """Marks a type that the function fills in."""

    def __init__(self, kind: Any) -> None:
        self.type = kind


def checked(code: int, call: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if code:
        raise Failed(call.__name__, code)
    return arguments
