"""Follows a kernel's arguments through its PTX, to prove that nothing is written through some of them.

Order and branches are ignored: a register carries an argument if any instruction may put something there that was
computed from it. An argument is `written` if an address so computed is stored to; `unknown` if it gets out of sight
(stored, passed to a function, used by an instruction not listed here); else `read_only`. What is loaded from memory
carries nothing: a pointer found there is not the argument. Comparing a pointer carries nothing either.
"""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from gcr.kernels.model import Access

_PREFIX = re.compile(r"(?:(?:[{}]|[\w$%]+\s*:(?!:)|@!?[\w$%]+)\s*)*")  # scopes, labels, a predicate
_DECLARATION = re.compile(r"\.(?:reg|param|local|shared|pragma|branchtargets|calltargets|callprototype)\b")
_OPCODE = re.compile(r"[A-Za-z][\w.:]*")
_NAME = re.compile(r"(?<![\w$%])[A-Za-z_$%][\w$]*")
_OPERAND = re.compile(r"\[[^\[\]]*\]|\{[^{}]*\}|[^,\[{]+")
_PARAMETER_ADDRESS = re.compile(r"\[\s*([\w$%]+)\s*(?:\+\s*(\d{1,9})\s*)?\]")
_WIDTH = re.compile(r"[bsuf](\d{1,3})$")

_LOADS_PARAMETER = re.compile(r"ld(?:\.\w+)*?\.param(?:::\w+)?(?:\.|\Z)")
_READS = re.compile(r"(?:ldu?|ldmatrix|prefetchu?|wmma\.load)(?:\.|\Z)")
_WRITES = re.compile(r"(?:st|red|atom|cp|stmatrix|wmma\.store)(?:\.|\Z)")
_COMPUTES = re.compile(
    r"(?:abs|addc?|and|bfe|bfi|bfind|brev|clz|cnot|copysign|cos|cvta?|div|dp[24]a|ex2|fma|fns|lg2|lop3|mad24|madc?|max|"
    r"min|mov|mul24|mul|neg|not|or|popc|prmt|rcp|rem|rsqrt|sad|selp|set|shf|shfl|shl|shr|sin|slct|sqrt|subc?|szext|"
    r"tanh|xor)(?:\.|\Z)"
)
_CARRIES_NOTHING = re.compile(
    r"(?:activemask|bar|barrier|bra|brkpt|elect|exit|fence|griddepcontrol|isspacep|membar|nanosleep|pmevent|ret|"
    r"setmaxnreg|setp|testp|trap|vote)(?:\.|\Z)"
)


class Parameter(Struct, frozen=True):
    """`size` is bytes."""

    name: str
    size: int


class _Flow(Struct):
    """Sets of arguments are bit masks."""

    bits: dict[str, int]
    sizes: dict[str, int]
    carried: dict[str, int] = field(default_factory=dict)  # by register
    moves: dict[str, set[str]] = field(default_factory=dict)  # from a register to those computed from it
    stored_to: set[str] = field(default_factory=set)  # registers in addresses that are written
    out_of_sight: set[str] = field(default_factory=set)
    unknown: int = 0

    @property
    def all(self) -> int:
        return (1 << len(self.bits)) - 1


def accesses(body: str, parameters: Sequence[Parameter]) -> list[Access]:
    """Returns the access of `body` through each of `parameters`. `body` has no comments and no strings."""
    bits = {parameter.name: 1 << index for index, parameter in enumerate(parameters)}
    flow = _Flow(bits, {parameter.name: parameter.size for parameter in parameters})
    for opcode, operands in _instructions(body):
        _follow(flow, opcode, operands)
    _spread(flow)
    written = _of(flow, flow.stored_to)
    unknown = flow.unknown | _of(flow, flow.out_of_sight)
    return [_verdict(written & bit, unknown & bit) for bit in bits.values()]


def _verdict(written: int, unknown: int) -> Access:
    if written:
        return Access.WRITTEN
    return Access.UNKNOWN if unknown else Access.READ_ONLY


def _instructions(body: str) -> Iterator[tuple[str, list[str]]]:
    for line in body.split(";"):
        statement = line.strip()
        if prefix := _PREFIX.match(statement):
            statement = statement[prefix.end() :]
        if statement and _DECLARATION.match(statement) is None:
            opcode = _OPCODE.match(statement)
            end = opcode.end() if opcode else 0
            yield statement[:end], [each.strip() for each in _OPERAND.findall(statement[end:]) if each.strip()]


def _follow(flow: _Flow, opcode: str, operands: list[str]) -> None:
    if _LOADS_PARAMETER.match(opcode):
        _load_parameter(flow, opcode, operands)
        return
    flow.unknown |= _mentioned(flow, operands)
    if not opcode:  # a directive that is not known, and may hide an instruction
        flow.unknown = flow.all
    elif _COMPUTES.match(opcode):
        _compute(flow, operands)
    elif _WRITES.match(opcode):
        _write(flow, opcode, operands)
    elif not _READS.match(opcode) and not _CARRIES_NOTHING.match(opcode):
        flow.out_of_sight |= _names(operands)


def _load_parameter(flow: _Flow, opcode: str, operands: list[str]) -> None:
    """A load from inside one argument carries that one; what cannot be seen to be inside makes all of them unknown."""
    source = _PARAMETER_ADDRESS.fullmatch(operands[-1]) if operands else None
    if source is None or (source[1] in flow.sizes and int(source[2] or 0) + _width(opcode) > flow.sizes[source[1]]):
        flow.unknown = flow.all
        return
    for name in _names(operands[:-1]):
        flow.carried[name] = flow.carried.get(name, 0) | flow.bits.get(source[1], 0)


def _width(opcode: str) -> int:
    """Bytes that a load brings; more than any argument has, where its type is not understood."""
    found = _WIDTH.search(opcode)
    lanes = 8 if ".v8" in opcode else 4 if ".v4" in opcode else 2 if ".v2" in opcode else 1
    return int(found[1]) // 8 * lanes if found else 1 << 30


def _compute(flow: _Flow, operands: list[str]) -> None:
    results = _names(operands[:1])
    for name in _names(operands[1:]):
        flow.moves.setdefault(name, set()).update(results)


def _write(flow: _Flow, opcode: str, operands: list[str]) -> None:
    """The first address is written; so are those after the second of a `cp`, its barriers. The second is its source."""
    addresses = [operand for operand in operands if operand.startswith("[")]
    source = addresses[1:2] if opcode.startswith("cp.") else []
    flow.stored_to |= _names([address for address in addresses if address not in source])
    result = operands[:1] if opcode.startswith("atom.") else []
    flow.out_of_sight |= _names([each for each in operands if each not in addresses and each not in result])


def _spread(flow: _Flow) -> None:
    todo = list(flow.carried)
    while todo:
        name = todo.pop()
        for target in flow.moves.get(name, ()):
            before = flow.carried.get(target, 0)
            flow.carried[target] = before | flow.carried[name]
            if flow.carried[target] != before:
                todo.append(target)


def _of(flow: _Flow, names: set[str]) -> int:
    found = 0
    for name in names:
        found |= flow.carried.get(name, 0)
    return found


def _names(operands: Sequence[str]) -> set[str]:
    return {name for operand in operands for name in _NAME.findall(operand)}


def _mentioned(flow: _Flow, operands: Sequence[str]) -> int:
    found = 0
    for name in _names(operands):
        found |= flow.bits.get(name, 0)
    return found
