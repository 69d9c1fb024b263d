"""CUDA binaries: kernels and the layout of their arguments.

An argument's record is in the section `.nv.info.<kernel>`, a list of attributes. They say offset and size, and, from
compilers that pass it on, the memory a pointer points to. They never say whether it is written.
"""

import struct
from collections.abc import Iterator

from gcr.kernels.elf import Elf, Section, symbols
from gcr.kernels.model import Access, Argument, Form, Image, Kernel, Kind, memory_kind
from gcr.kernels.span import Span

_ENTRY = 0x10  # bit of st_other: a kernel, not a device function
_SIZED = 4  # format of an attribute whose payload follows; other formats need two bytes
_PARAMETER, _PARAMETER_BLOCK, _LARGE_PARAMETER = 0x17, 0x19, 0x45
_ATTRIBUTE = struct.Struct("<BBH")  # format, attribute, payload or its size
_RECORD = struct.Struct("<IHHI")  # symbol, ordinal, offset, size << 18 | bank << 12 | space << 8 | log2 of alignment
_LARGE_RECORD = struct.Struct("<IHHHH")  # symbol, ordinal, offset, size, space << 8 | log2 of alignment
# Seen from ptxas 13.0 for `.ptr` with each space; none (0) is what older compilers leave for every argument.
_POINTERS = {1: Kind.SCRATCH, 2: Kind.SCRATCH, 4: Kind.POINTER, 5: Kind.POINTER}


def read_cubin(elf: Elf, place: str) -> Image:
    """Raises MalformedFile."""
    target = f"sm_{_architecture(elf)}"
    if not elf.wide:
        return Image(place, Form.UNREAD, target, note="a 32-bit cubin")
    information = {section.name: section for section in elf.sections if section.name.startswith(".nv.info.")}
    names = dict.fromkeys(symbols(elf, _ENTRY))
    kernels = (_kernel(name, information.get(f".nv.info.{name}")) for name in names)
    return Image(place, Form.CUBIN, target, tuple(kernels))


def _architecture(elf: Elf) -> int:
    """ABI version 8, of CUDA 13, moved it up by a byte."""
    return elf.flags >> 8 & 0xFF if elf.abi_version >= 8 else elf.flags & 0xFF


def _kernel(name: str, information: Section | None) -> Kernel:
    if information is None:
        return Kernel(name, 0, ())
    attributes = list(_attributes(information.content))
    block = sum(int.from_bytes(payload, "little") for kind, payload in attributes if kind == _PARAMETER_BLOCK)
    found = [_argument(kind, payload, information.content) for kind, payload in attributes if kind in _LAYOUTS]
    return Kernel(name, block, tuple(sorted(found, key=lambda argument: argument.index)))


def _attributes(content: Span) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < content.size:
        form, kind, value = content.fields(_ATTRIBUTE, at)
        at += _ATTRIBUTE.size
        if form == _SIZED:
            yield kind, content.read(at, value)
            at += value
        else:
            yield kind, value.to_bytes(2, "little")


def _argument(kind: int, payload: bytes, content: Span) -> Argument:
    layout = _LAYOUTS[kind]
    if len(payload) != layout.size:
        raise content.malformed(f"an argument's record of {len(payload)} bytes")
    _symbol, index, offset, *rest = layout.unpack(payload)
    size = rest[0] >> 18 if kind == _PARAMETER else rest[0]
    what = _kind(size, rest[-1] >> 8 & 0xF)
    return Argument(index, offset, size, what, Access.UNKNOWN if what in (Kind.POINTER, Kind.OPAQUE) else None)


def _kind(size: int, space: int) -> Kind:
    return _POINTERS.get(space, memory_kind(size))


_LAYOUTS = {_PARAMETER: _RECORD, _LARGE_PARAMETER: _LARGE_RECORD}
