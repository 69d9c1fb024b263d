"""Fixed-width little-endian records: a Struct whose annotations say how each field is packed.

    class TransactionRecord(Record):
        transaction: U64

A field that is reserved is a `ClassVar` of value 0: it takes its bytes and no place in the constructor.
"""

import struct
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin, get_type_hints

from msgspec import Struct

from gcr.errors import RolledBack

U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
I32 = Annotated[int, "i"]
U64 = Annotated[int, "Q"]
Uuid = Annotated[bytes, "16s"]


class BadFrame(RolledBack):
    """Bytes on a socket did not parse; the connection was closed: report it."""

    code = "bad_frame"


class Record(Struct, frozen=True):
    """Base of every record. `SIZE` is its length in bytes on the wire."""

    SIZE: ClassVar[int]
    FIELDS: ClassVar[tuple[tuple[str, str], ...]]  # name and struct code, reserved ones included
    _layout: ClassVar[struct.Struct]
    _texts: ClassVar[frozenset[str]]
    _reserved: ClassVar[frozenset[str]]

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        packed = {name: packing for name, hint in hints.items() if (packing := _packing(hint))}
        cls.FIELDS = tuple((name, code) for name, (_, code) in packed.items())
        cls._texts = frozenset(name for name, (kind, _) in packed.items() if kind is str)
        cls._reserved = frozenset(name for name in packed if get_origin(hints[name]) is ClassVar)
        cls._layout = struct.Struct("<" + "".join(code for _, code in cls.FIELDS))
        cls.SIZE = cls._layout.size

    def pack(self) -> bytes:
        """The record's bytes. Raises ValueError for text that does not fit, struct.error for a number that does not."""
        return self._layout.pack(*(self._outward(name, code) for name, code in self.FIELDS))

    @classmethod
    def unpack(cls, data: bytes, offset: int = 0) -> Self:
        """Read one record; what follows it is left alone. Raises BadFrame when `data` is too short."""
        if offset < 0 or len(data) - offset < cls.SIZE:
            raise BadFrame(f"{cls.__name__} needs {cls.SIZE} bytes, {len(data) - offset} are there")
        return cls._made_of(cls._layout.unpack_from(data, offset))

    @classmethod
    def unpack_many(cls, data: bytes, offset: int, count: int, stride: int = 0) -> tuple[Self, ...]:
        """`count` records, `stride` bytes apart (0: their own size). Raises BadFrame."""
        stride = stride or cls.SIZE
        if stride < cls.SIZE or len(data) - offset < count * stride:
            raise BadFrame(f"{count} × {cls.__name__} of {stride} bytes do not fit into {len(data) - offset}")
        return tuple(cls._made_of(cls._layout.unpack_from(data, offset + index * stride)) for index in range(count))

    @classmethod
    def _made_of(cls, values: tuple[Any, ...]) -> Self:
        if not cls._texts and not cls._reserved:  # thousands of them are read while a program stands still
            return cls(*values)
        named = zip(cls.FIELDS, values, strict=True)
        return cls(**{name: cls._inward(name, value) for (name, _), value in named if name not in cls._reserved})

    def _outward(self, name: str, code: str) -> Any:
        value = getattr(self, name)
        if name not in self._texts:
            return value
        text: bytes = value.encode()
        if len(text) > int(code[:-1]) or b"\0" in text:
            raise ValueError(f"{name} of {type(self).__name__}: {len(text)} bytes of text for {code[:-1]}")
        return text

    @classmethod
    def _inward(cls, name: str, value: Any) -> Any:
        # A sender may have cut its text inside a character, hence "replace".
        return value.partition(b"\0")[0].decode(errors="replace") if name in cls._texts else value


def _packing(hint: Any) -> tuple[Any, ...]:
    """The Python type and struct code of an annotation such as U32 or ClassVar[U32]; nothing for any other."""
    if get_origin(hint) is ClassVar:
        (hint,) = get_args(hint)
    return get_args(hint) if get_origin(hint) is Annotated else ()


def concat(*records: Record) -> bytes:
    return b"".join(record.pack() for record in records)
