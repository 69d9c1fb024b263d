"""PTX: kernels, the layout of their arguments, and which of them nothing is written through."""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from gcr.kernels.model import Access, Argument, Form, Image, Kernel, Kind, Proof
from gcr.kernels.ptxflow import Parameter, accesses
from gcr.kernels.span import Span

_NOISE = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_LINE_NUMBER = re.compile(
    r"\.loc\s+\d+\s+\d+\s+\d+"
    r"(?:\s*,\s*function_name\s+[\w$%]+(?:\s*\+\s*\d+)?\s*,\s*inlined_at\s+\d+\s+\d+\s+\d+)?"
)
_VERSION = re.compile(r"\s*\.version\s")
_ADDRESS_SIZE = re.compile(r"\.address_size\s+64\b")  # without the directive it is 32
_TARGET = re.compile(r"^[ \t]*\.target\s+(\w+)", re.MULTILINE)
_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*(?:\(([^(){};]*)\))?")
_BRACE = re.compile(r"[{}]")
_HEAD_ENDS = re.compile(r"[{};]")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d{1,9})\s+)?\.(?P<type>\w+)\s+"
    r"(?P<pointer>\.ptr\s+)?(?:\.(?P<space>const|global|local|shared)\s+)?(?:\.align\s+\d+\s+)?"
    r"(?P<name>[\w$%]+)\s*(?:\[\s*(?P<count>\d{1,9})\s*\])?"
)
_SCALAR = re.compile(r"[bsuf](8|16|32|64|128)(x2)?")
_HANDLES = ("texref", "samplerref", "surfref")
_MOST_PARAMETERS = 4096


class _Declared(Struct, frozen=True):
    parameter: Parameter
    offset: int
    kind: Kind


def looks_like_ptx(head: bytes) -> bool:
    """`head` is the beginning of a file."""
    return _VERSION.match(_NOISE.sub(" ", head.decode("utf-8", "replace"))) is not None


def read_ptx(content: Span) -> Image:
    """Raises MalformedFile."""
    text = content.whole().rstrip(b"\0").decode("utf-8", "replace")
    text = _LINE_NUMBER.sub("", _NOISE.sub(" ", text))
    target = _TARGET.search(text)
    if target is None:
        raise content.malformed("PTX without a target")
    if _ADDRESS_SIZE.search(text) is None:
        return Image(content.place, Form.UNREAD, target[1], note="32-bit PTX")
    return Image(content.place, Form.PTX, target[1], tuple(_kernels(text, content)))


def _kernels(text: str, content: Span) -> Iterator[Kernel]:
    at = 0
    while entry := _ENTRY.search(text, at):
        head = _HEAD_ENDS.search(text, entry.end())
        if head is None or head[0] == "}":
            raise content.malformed("PTX that ends in the head of a kernel")
        at = head.end()
        if head[0] == "{":  # else a declaration
            end = _end_of_block(text, at, content)
            yield _kernel(entry[1], entry[2] or "", text[at:end], content)
            at = end


def _end_of_block(text: str, start: int, content: Span) -> int:
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    raise content.malformed("PTX that ends inside a kernel")


def _kernel(name: str, parameters: str, body: str, content: Span) -> Kernel:
    pieces = [piece.strip() for piece in parameters.split(",") if piece.strip()]
    if len(pieces) > _MOST_PARAMETERS:
        raise content.malformed(f"a kernel of {len(pieces)} arguments")
    declared = list(_laid_out(pieces, content))
    if len({each.parameter.name for each in declared}) != len(declared):
        raise content.malformed(f"two arguments of {name[:80]} have one name")
    found = accesses(body, [each.parameter for each in declared])
    arguments = tuple(_argument(index, each, found[index]) for index, each in enumerate(declared))
    return Kernel(name, max((each.offset + each.size for each in arguments), default=0), arguments)


def _laid_out(pieces: Sequence[str], content: Span) -> Iterator[_Declared]:
    """Each argument at the next offset that its alignment allows."""
    at = 0
    for piece in pieces:
        found = _PARAMETER.fullmatch(piece)
        if found is None:
            raise content.malformed(f"an argument that is not understood: {piece[:80]!r}")
        unit = _unit(found["type"], content)
        size = unit * int(found["count"] or 1)
        align = int(found["align"] or unit) or 1
        at = (at + align - 1) // align * align
        yield _Declared(Parameter(found["name"], size), at, _kind(found, size))
        at += size


def _unit(kind: str, content: Span) -> int:
    if kind in _HANDLES:
        return 8
    found = _SCALAR.fullmatch(kind)
    if found is None:
        raise content.malformed(f"an argument of type {kind[:80]!r}")
    return int(found[1]) // 8 * (2 if found[2] else 1)


def _kind(found: re.Match[str], size: int) -> Kind:
    if found["type"] in _HANDLES:
        return Kind.OBJECT
    if found["pointer"]:
        return Kind.SCRATCH if found["space"] in ("local", "shared") else Kind.POINTER
    scalar_float = found["type"].startswith("f") and found["count"] is None
    return Kind.VALUE if size < 8 or scalar_float else Kind.OPAQUE


def _argument(index: int, declared: _Declared, access: Access) -> Argument:
    place = (index, declared.offset, declared.parameter.size, declared.kind)
    if declared.kind not in (Kind.POINTER, Kind.OPAQUE):
        return Argument(*place)
    return Argument(*place, access, None if access is Access.UNKNOWN else Proof.PTX)
