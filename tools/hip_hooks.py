# SPDX-License-Identifier: Apache-2.0
"""Writes shim/src/hooks/hip.def from hip-python's declarations and the reviewed table tools/hip_classes.toml.

Run by hand when AMD publishes a newer release; never by the build:

    python tools/hip_hooks.py --declarations .../rocm/bindings/cyhip.pxd --output shim/src/hooks/hip.def

There is no ROCm on PyPI, but hip-python's .pxd lists every function of the runtime with its parameters. What it leaves
out (names of older layouts and of other headers, functions of other types) stands in the table.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CLASSES = Path(__file__).with_name("hip_classes.toml")
ABI = Path(__file__).parents[1] / "shim/abi/hip.h"
ABI_PARTS = (ABI, ABI.with_name("hip_device.h"))
PLAIN = frozenset(
    ("void", "char", "int", "float", "size_t", "uint8_t", "uint32_t", "uint64_t", "unsigned", "short", "long")
)

PREAMBLE = """\
// SPDX-License-Identifier: Apache-2.0
// clang-format off
//
// Every symbol of the HIP runtime, once, sorted by name; every table of the shim is made from this list.
// Written by tools/hip_hooks.py (prototypes) from tools/hip_classes.toml (what the shim does with each).
// Newest HIP version in it: {version}.
//
//   GCR_HOOK(symbol, kind, (parameters), (arguments))   wrapped and exported
//   GCR_ALONE(symbol)                                   left alone
//
// A pointer to what shim/abi/hip.h does not describe is void*: it is only passed on.
#ifndef GCR_HOOK
#define GCR_HOOK(symbol, kind, parameters, arguments)
#endif
#ifndef GCR_ALONE
#define GCR_ALONE(symbol)
#endif

"""
POSTAMBLE = """
#undef GCR_HOOK
#undef GCR_ALONE
"""


class DeclarationError(Exception):
    """The declarations and the table do not agree; the message says where."""


@dataclass(frozen=True, slots=True)
class Symbol:
    name: str
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """Symbols whose whole name matches `pattern` are treated as `kind`."""

    kind: str
    pattern: re.Pattern[str]


# ---- reading declarations -------------------------------------------------------------------------------------------
def declared(text: str) -> list[Symbol]:
    """Every function of the declarations that returns hipError_t."""
    found = re.findall(r"^cdef hipError_t (hip\w+)\((.*)\) except\?", text, re.M)
    return [Symbol(name, parameters_of(inside, text)) for name, inside in found]


def parameters_of(inside: str, text: str) -> tuple[str, ...]:
    return tuple(parameter(each.strip(), text) for each in inside.split(",") if each.strip())


def parameter(declaration: str, text: str) -> str:
    match = re.fullmatch(r"(.*[\s*])(\w+)", declaration)
    if match is None:
        raise DeclarationError(f"cannot read the parameter {declaration!r}")
    return f"{spell(match[1].strip(), text)} {match[2]}"


def spell(kind: str, text: str) -> str:
    """A type as the .def writes it. Raises DeclarationError for a struct by value that our header lacks."""
    stars = kind.count("*")
    if set(re.findall(r"\w+", kind)) <= PLAIN | our_types() | {"const"}:
        return re.sub(r"\s*\*\s*", "*", kind)
    if stars:
        return ("const " if kind.startswith("const ") and stars == 1 else "") + "void" + "*" * stars
    return spell_value(kind, text)


def spell_value(kind: str, text: str) -> str:
    """Passed by value and not in our header: a handle, an enum, or another name of something."""
    if re.search(rf"ctypedef [^\n]*\* {kind}$", text, re.M):
        return "void*"
    if re.search(rf"cdef enum {kind}:", text):
        return "unsigned int"
    if alias := re.search(rf"ctypedef (\w+) {kind}$", text, re.M):
        return spell(alias[1], text)
    raise DeclarationError(f"{kind} is passed by value, and {ABI.name} does not describe it")


@cache
def our_types() -> frozenset[str]:
    """The names that shim/abi/hip.h gives to types."""
    text = "".join(part.read_text() for part in ABI_PARTS)
    simple = re.findall(r"^typedef [^;{(]*?(\w+);$", text, re.M)
    structs = re.findall(r"^typedef struct (\w+) {", text, re.M) + re.findall(r"^} (\w+);$", text, re.M)
    return frozenset([*simple, *structs, *re.findall(r"^typedef .*\(\*(\w+)\)", text, re.M)])


# ---- putting names and classes together -----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Table:
    """tools/hip_classes.toml."""

    version: str
    rules: Sequence[Rule]
    renamed: dict[str, str]  # what a header's macro makes of a name
    extra: Sequence[Symbol]
    alone: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> "Table":
        raw = tomllib.loads(path.read_text())
        rules = [Rule(each["class"], re.compile("|".join(f"(?:{s})" for s in each["symbols"]))) for each in raw["rule"]]
        extra = [Symbol(name, tuple(parameters)) for name, parameters in raw["extra"].items()]
        return cls(raw["version"], rules, raw["renamed"], extra, frozenset(raw["alone"]["symbols"]))


def symbols(text: str, table: Table) -> list[Symbol]:
    """Everything the runtime exports under a name of its own, sorted."""
    found = {table.renamed.get(each.name, each.name): each.parameters for each in declared(text)}
    for each in table.extra:
        found.setdefault(each.name, each.parameters)
    for name in table.alone:
        found.setdefault(name, ())
    return [Symbol(name, found[name]) for name in sorted(found)]


def classify(name: str, table: Table) -> str:
    """The class of a symbol. Raises DeclarationError when no rule knows it."""
    if name in table.alone:
        return "ALONE"
    plain = name.removesuffix("_spt")
    return next((rule.kind for rule in table.rules if rule.pattern.fullmatch(plain)), "") or _unknown(name)


def _unknown(name: str) -> str:
    raise DeclarationError(f"{name} matches no rule of {CLASSES.name}: a person has to decide its class")


def line(symbol: Symbol, kind: str) -> str:
    if kind == "ALONE":
        return f"GCR_ALONE({symbol.name})"
    arguments = ", ".join(re.findall(r"(\w+)$", each)[0] for each in symbol.parameters)
    return f"GCR_HOOK({symbol.name}, {kind}, ({', '.join(symbol.parameters)}), ({arguments}))"


def definitions(text: str, table: Table) -> str:
    """The text of hip.def for the declarations in `text`."""
    lines = [line(symbol, classify(symbol.name, table)) for symbol in symbols(text, table)]
    return PREAMBLE.format(version=table.version) + "\n".join(lines) + "\n" + POSTAMBLE


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--declarations", type=Path, required=True, help="cyhip.pxd of hip-python")
    parser.add_argument("--output", type=Path, required=True, help="the .def to write")
    chosen = parser.parse_args(arguments)
    try:
        text = definitions(chosen.declarations.read_text(), Table.read(CLASSES))
    except DeclarationError as error:
        print(f"hip_hooks: {error}", file=sys.stderr)
        return 1
    chosen.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
