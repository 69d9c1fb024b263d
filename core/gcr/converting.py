"""`msgspec.convert`, for threads: first conversions to a type take turns.

msgspec 0.22 finds out the fields of a Struct at the first conversion to it. A thread that converts to the same type
meanwhile sees them half made, and the process dies (SIGSEGV).
"""

from threading import RLock
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_known: set[object] = set()  # msgspec knows the fields of these types, and of the types within them
_turn = RLock()  # a Struct may convert others when it is made


@overload
def convert(found: Any, kind: type[T], *, str_keys: bool = False) -> T: ...
@overload
def convert(found: Any, kind: Any, *, str_keys: bool = False) -> Any: ...
def convert(found: Any, kind: Any, *, str_keys: bool = False) -> Any:
    """Raises ValidationError, and what the type raises when it is made."""
    if kind in _known:
        return msgspec.convert(found, kind, str_keys=str_keys)
    with _turn:
        try:
            return msgspec.convert(found, kind, str_keys=str_keys)
        finally:
            _known.add(kind)
