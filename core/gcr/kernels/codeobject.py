"""AMD code objects: the compiler's metadata, MessagePack in an ELF note.

`.actual_access` is there only for a `restrict` pointer that the optimiser could follow to every use; older
compilers write the same under `.access`. `.is_const` is a declaration and proves nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from gcr.kernels.elf import Elf, notes
from gcr.kernels.errors import FileTooLarge
from gcr.kernels.libraries import library
from gcr.kernels.model import Access, Argument, Form, Image, Kernel, Kind, Proof, memory_kind
from gcr.kernels.span import Span

_OWNER, _METADATA = b"AMDGPU", 32
_LARGEST = 16 << 20  # bytes of metadata; unpacked it takes up to sixty times that
_OBJECTS = ("image", "sampler", "pipe", "queue")
_ACCESS = {"read_only": Access.READ_ONLY, "write_only": Access.WRITTEN, "read_write": Access.WRITTEN}
Wanted = TypeVar("Wanted")


def read_code_object(elf: Elf, place: str) -> Image:
    """Raises MalformedFile, FileTooLarge."""
    for note in _metadata(elf):
        found = _unpacked(note)
        kernels = tuple(_kernel(each, note) for each in _value(found, "amdhsa.kernels", list, note, []))
        return Image(
            place, Form.CODE_OBJECT, _value(found, "amdhsa.target", str, note, "").rpartition("--")[2], kernels
        )
    return Image(place, Form.UNREAD, "amdgpu", note="no MessagePack metadata: a code object of version 2, or not HSA")


def _metadata(elf: Elf) -> Iterator[Span]:
    for section in elf.of_type("SHT_NOTE"):
        yield from (content for owner, kind, content in notes(section.content) if (owner, kind) == (_OWNER, _METADATA))


def _unpacked(note: Span) -> Mapping[str, Any]:
    if note.size > _LARGEST:
        raise FileTooLarge(f"{note.size} bytes of metadata, the limit is {_LARGEST}")
    msgpack = library("msgpack")
    try:
        found = msgpack.unpackb(note.whole())
    except (msgpack.UnpackException, ValueError, OverflowError) as error:
        raise note.malformed(f"metadata is not MessagePack: {error}") from error
    return _checked(found, dict, "metadata", note)


def _kernel(found: object, note: Span) -> Kernel:
    kernel = _checked(found, dict, "a kernel", note)
    arguments = enumerate(_value(kernel, ".args", list, note, []))
    name = _value(kernel, ".name", str, note)
    size = _count(kernel, ".kernarg_segment_size", note)
    return Kernel(name, size, tuple(_argument(index, each, note) for index, each in arguments))


def _argument(index: int, found: object, note: Span) -> Argument:
    argument = _checked(found, dict, "an argument", note)
    offset, size = (_count(argument, key, note) for key in (".offset", ".size"))
    kind = _kind(_value(argument, ".value_kind", str, note), size)
    if kind not in (Kind.POINTER, Kind.OPAQUE):
        return Argument(index, offset, size, kind)
    said = _value(argument, ".actual_access", str, note, "") or _value(argument, ".access", str, note, "")
    access = _ACCESS.get(said, Access.UNKNOWN)
    return Argument(index, offset, size, kind, access, None if access is Access.UNKNOWN else Proof.COMPILER)


def _kind(value_kind: str, size: int) -> Kind:
    if value_kind.startswith("hidden_"):
        return Kind.HIDDEN
    if value_kind in _OBJECTS:
        return Kind.OBJECT
    named = {"global_buffer": Kind.POINTER, "dynamic_shared_pointer": Kind.SCRATCH}
    return named.get(value_kind) or memory_kind(size)


def _count(of: Mapping[str, Any], key: str, note: Span) -> int:
    found = _value(of, key, int, note)
    if found < 0:
        raise note.malformed(f"metadata: {key} is negative")
    return found


def _value(of: Mapping[str, Any], key: str, kind: type[Wanted], note: Span, default: Wanted | None = None) -> Wanted:
    return _checked(of.get(key, default), kind, key, note)


def _checked(found: object, kind: type[Wanted], name: str, note: Span) -> Wanted:
    if not isinstance(found, kind):
        raise note.malformed(f"metadata: {name} is not a {kind.__name__}")
    return found
