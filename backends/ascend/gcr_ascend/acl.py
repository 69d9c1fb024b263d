"""Ascend's runtime as a table of checked calls: `acl.aclrtMalloc(size, policy)` returns the address or raises.

Built from `acl.toml`, the one list; there is no vendor wheel to build on. Nothing is loaded before the first call, and
ctypes lets other threads run during each. Device addresses and handles are ints; 0 is none.
"""

import ctypes
import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gcr.calls import SUCCESS, Calls
from gcr.errors import BackendMissing, DriverTooOld
from gcr_ascend.abi import ctype

_MISSING = object()
_INSTALL = "install CANN and the Ascend driver, and source CANN's set_env.sh so that its libraries are found"


class Call(Struct, frozen=True):
    """One C function: what it takes, what it gives, and where it is."""

    name: str
    library: str
    parameters: tuple[str, ...]  # C types; those filled in by the call as well, each as a pointer
    outputs: tuple[int, ...]  # which parameters the call fills in
    returns: str  # "" for an error code
    since: str  # CANN release, "" for every one


class Table(Struct, frozen=True):
    """`acl.toml`, read."""

    calls: Mapping[str, Call]
    libraries: Mapping[str, tuple[str, ...]]  # file names, tried in turn
    errors: Mapping[int, str]


def _call(name: str, library: str, types: list[str], since: str) -> Call:
    returns = types[-1].removeprefix("-> ") if types and types[-1].startswith("-> ") else ""
    parameters = types[:-1] if returns else types
    outputs = tuple(i for i, each in enumerate(parameters) if each.startswith("out "))
    plain = tuple(f"{each.removeprefix('out ')}*" if each.startswith("out ") else each for each in parameters)
    return Call(name, library, plain, outputs, returns, since)


@functools.cache
def table() -> Table:
    """The list of calls, libraries and error names."""
    text = importlib.resources.files("gcr_ascend").joinpath("acl.toml").read_text()
    read = tomllib.loads(text)
    calls = {
        name: _call(name, library, types, read["since"].get(name, ""))
        for library, group in read["calls"].items()
        for name, types in group.items()
    }
    libraries = {name: tuple(files) for name, files in read["libraries"].items()}
    return Table(calls, libraries, {number: name for name, number in read["errors"].items()})


@functools.cache
def library(name: str) -> ctypes.CDLL:
    """One of the vendor's libraries, found by the loader's own search. Raises BackendMissing."""
    files = table().libraries[name]
    reasons: dict[str, None] = {}
    for file in files:
        try:
            return ctypes.CDLL(file)
        except OSError as missing:
            reasons[str(missing).removeprefix(f"{file}: ")] = None
    raise BackendMissing(f"{' or '.join(files)}: {'; '.join(reasons)}", hint=_INSTALL)


def _symbol(call: Call) -> Any:
    found = getattr(library(call.library), call.name, None)
    if found is None:
        release = f": it came with CANN {call.since}" if call.since else ""
        raise DriverTooOld(f"this CANN has no {call.name}{release}", hint=_INSTALL)
    return found


@functools.cache
def function(name: str) -> Any:
    """The ctypes function behind a listed call. Raises BackendMissing, DriverTooOld when the symbol is not there."""
    call = table().calls[name]
    found = _symbol(call)
    found.argtypes = [ctype(each) for each in call.parameters]
    found.restype = ctype(call.returns) if call.returns else ctypes.c_int
    return found


def has(name: str) -> bool:
    """Returns whether the installed library has this call. Raises BackendMissing without the library."""
    try:
        _symbol(table().calls[name])
    except DriverTooOld:
        return False
    return True


def _value(output: Any) -> Any:
    """A scalar as a Python number, a null pointer as 0, a structure as itself."""
    return (output.value or 0) if hasattr(output, "value") else output


def _with_outputs(call: Call, arguments: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """All arguments in the C order, and the places that the call fills in."""
    given = iter(arguments)
    places = {i: ctype(call.parameters[i].removesuffix("*"))() for i in call.outputs}
    every = [ctypes.byref(places[i]) if i in places else next(given, _MISSING) for i in range(len(call.parameters))]
    if any(each is _MISSING for each in every) or next(given, _MISSING) is not _MISSING:
        expected = len(call.parameters) - len(call.outputs)
        raise TypeError(f"{call.name} takes {expected} arguments, {len(arguments)} were given")
    return every, list(places.values())


class Acl(Calls):
    """Every listed call; what the list does not have is an AttributeError."""

    def attempt(self, call: str, *arguments: Any) -> tuple[int, Any]:
        """Raises BackendMissing without the library, DriverTooOld without the symbol, AttributeError unlisted."""
        listed = table().calls.get(call)
        if listed is None:
            raise AttributeError(f"acl.toml does not list {call}")
        every, places = _with_outputs(listed, arguments)
        result = function(call)(*every)
        if listed.returns:
            return SUCCESS, result
        values = tuple(_value(place) for place in places)
        return int(result), values[0] if len(values) == 1 else values or None

    def describe(self, call: str, result: int) -> str:
        """Returns the call and its error, with the runtime's own message if there is one."""
        text = f"{call}: {table().errors.get(result, 'error')} ({result})"
        own = table().calls[call].library == "acl" and function("aclGetRecentErrMsg")()
        return f"{text}: {own.decode(errors='replace')}" if own else text


acl = Acl()
attempt = acl.attempt
