# SPDX-License-Identifier: Apache-2.0
"""Writes shim/src/hooks/acl.def from CANN's headers and the reviewed table tools/acl_classes.toml.

Run by hand when Huawei publishes a newer release; never by the build:

    python tools/acl_hooks.py --headers .../torch_npu/include --output shim/src/hooks/acl.def

The headers (a folder with `acl/acl_rt.h`) come with an installed CANN and with the torch-npu wheel; several may be
named.
The runtime below ACL (`rt*`) has no public header: the entry points that launch kernels stand in the table.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CLASSES = Path(__file__).with_name("acl_classes.toml")
ABI = Path(__file__).parents[1] / "shim/abi/acl.h"
FOREIGN = frozenset({"super_kernel.h"})  # C++, of a library of its own
FIXED = [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)]
PLAIN = frozenset(["void", "char", "bool", "int", "float", "double", "size_t", "unsigned", "short", "long", *FIXED])

FUNCTION = re.compile(r"(?:extern )?((?:const )?\w+(?: ?\*+ ?| ))(acl[a-z]*[A-Z]\w*) ?\((.*)\) ?")

PREAMBLE = """\
// SPDX-License-Identifier: Apache-2.0
// clang-format off
//
// Every symbol of Ascend's ACL, and the launches of the runtime below it, once, sorted by name; every table of the shim
// is made from this list. Written by tools/acl_hooks.py (prototypes) from tools/acl_classes.toml (what the shim does).
// Newest CANN in it: {version}.
//
//   GCR_HOOK(symbol, kind, (parameters), (arguments))   wrapped and exported
//   GCR_ALONE(symbol)                                   left alone
//
// A pointer to what shim/abi/acl.h does not describe is void*: it is only passed on.
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
    """The headers and the table do not agree; the message says where."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """`parameters`: as the .def writes them; None: its result is no error code, it cannot be wrapped."""

    name: str
    parameters: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Rule:
    """Symbols whose whole name matches `pattern` are treated as `kind`."""

    kind: str
    pattern: re.Pattern[str]


# ---- reading headers ------------------------------------------------------------------------------------------------
def preprocessed(folder: Path) -> str:
    """All public headers of one release, without comments and macros."""
    names = sorted(each.name for each in (folder / "acl").glob("*.h") if each.name not in FOREIGN)
    text = "".join(f'#include "acl/{name}"\n' for name in names)
    command = ["cc", "-E", "-P", f"-I{folder}", f"-I{folder / 'acl'}", "-x", "c", "-"]
    done = subprocess.run(command, input=text, check=True, capture_output=True, text=True, timeout=60)
    return re.sub(r"\s+", " ", re.sub(r"__attribute__\(\((?:[^()]|\([^()]*\))*\)\)", "", done.stdout))


def declared(text: str, alone: frozenset[str]) -> list[Symbol]:
    """Every function of the headers; of those left alone only the name."""
    matches = (re.fullmatch(FUNCTION, each) for each in re.split(r" ?[;{}] ?", text))
    found = [match.groups() for match in matches if match]
    wrapped = (is_code(result) and name not in alone for result, name, _ in found)
    return [
        Symbol(name, parameters_of(inside, text) if wrap else None)
        for wrap, (_, name, inside) in zip(wrapped, found, strict=True)
    ]


def is_code(result: str) -> bool:
    return result.strip() in ("aclError", "rtError_t")


def parameters_of(inside: str, text: str) -> tuple[str, ...]:
    words = [each.strip() for each in re.split(r",(?![^(]*\))", inside)]
    return () if words in ([""], ["void"]) else tuple(parameter(each, text) for each in words)


def parameter(declaration: str, text: str) -> str:
    if callback := re.search(r"\( ?\* ?(?:const )?(\w+)\)", declaration):
        return f"void* {callback[1]}"
    declaration = re.sub(r"\bconst (\w+)((?:\[\w*\])*)$", r"\1\2", declaration)  # const beside the name says nothing
    match = re.fullmatch(r"(.*[\s*])(\w+)((?:\[\w*\])*)", declaration)
    if match is None:
        raise DeclarationError(f"cannot read the parameter {declaration!r}")
    kind = spell(match[1].strip() + ("*" if match[3] else ""), text)
    return f"{'void*' if match[3].count('[') > 1 else kind} {match[2]}"


def spell(kind: str, text: str) -> str:
    """A type as the .def writes it. Raises DeclarationError for a struct by value that our header lacks."""
    stars = kind.count("*")
    words = set(re.findall(r"\w+", kind))
    if words <= PLAIN | our_types() | {"const"}:
        return re.sub(r"\s*\*\s*", "*", kind)
    if stars:
        return ("const " if kind.startswith("const ") and stars == 1 else "") + "void" + "*" * stars
    return spell_value(kind.removeprefix("const ").removeprefix("enum "), text)


def spell_value(kind: str, text: str) -> str:
    """Passed by value and not in our header: a handle, a callback, an enum, or another name of something."""
    handle, callback = rf"typedef [^;{{}}()]*\* ?{kind} ?;", rf"typedef [^;{{}}]*\( ?\* ?{kind} ?\)"
    if re.search(handle, text) or re.search(callback, text):
        return "void*"
    if re.search(rf"}} ?{kind} ?;", text) and re.search(rf"enum[^;{{}}]*{{[^{{}}]*}} ?{kind} ?;", text):
        return "int32_t"
    if re.search(rf"\benum {kind} ?{{", text):
        return "int32_t"
    if alias := re.search(rf"typedef (?:enum )?(\w+) {kind} ?;", text):
        return spell(alias[1], text)
    raise DeclarationError(f"{kind} is passed by value, and {ABI.name} does not describe it")


@cache
def our_types() -> frozenset[str]:
    """The names that shim/abi/acl.h gives to types."""
    text = ABI.read_text()
    simple = re.findall(r"^typedef [^;{(]*?(\w+);$", text, re.M)
    structures, callbacks = re.findall(r"^} (\w+);$", text, re.M), re.findall(r"^typedef .*\(\*(\w+)\)", text, re.M)
    return frozenset([*simple, *structures, *callbacks])


# ---- putting names and classes together -----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Table:
    """tools/acl_classes.toml."""

    version: str
    rules: Sequence[Rule]
    alone: frozenset[str]
    runtime: Sequence[Symbol]  # rt*, by hand

    @classmethod
    def read(cls, path: Path) -> "Table":
        raw = tomllib.loads(path.read_text())
        rules = [Rule(each["class"], re.compile("|".join(f"(?:{s})" for s in each["symbols"]))) for each in raw["rule"]]
        runtime = [Symbol(name, tuple(each)) for name, each in raw["runtime"].items()]
        return cls(raw["version"], rules, frozenset(raw["alone"]), runtime)


def symbols(texts: Iterable[str], table: Table) -> list[Symbol]:
    """Everything that is exported, sorted; what two headers declare, as the first does."""
    found: dict[str, Symbol] = {}
    for each in [*(one for text in texts for one in declared(text, table.alone)), *table.runtime]:
        found.setdefault(each.name, each)
    return [found[name] for name in sorted(found)]


def classify(symbol: Symbol, table: Table) -> str:
    """The class of a symbol. Raises DeclarationError when no rule knows it."""
    if symbol.parameters is None:
        return "ALONE"
    for rule in table.rules:
        if rule.pattern.fullmatch(symbol.name):
            return rule.kind
    raise DeclarationError(f"{symbol.name} matches no rule of {CLASSES.name}: what shall the shim do with it?")


def line(symbol: Symbol, kind: str) -> str:
    if kind == "ALONE":
        return f"GCR_ALONE({symbol.name})\n"
    parameters = symbol.parameters or ()
    arguments = ", ".join(each.rpartition(" ")[2] for each in parameters)
    return f"GCR_HOOK({symbol.name}, {kind}, ({', '.join(parameters)}), ({arguments}))\n"


def generate(folders: Sequence[Path]) -> str:
    """The text of acl.def."""
    table = Table.read(CLASSES)
    found = symbols([preprocessed(folder) for folder in folders], table)
    return PREAMBLE.format(version=table.version) + "".join(line(s, classify(s, table)) for s in found) + POSTAMBLE


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--headers", type=Path, action="append", required=True)
    options.add_argument("--output", type=Path, required=True)
    given = options.parse_args()
    try:
        text = generate(given.headers)
    except DeclarationError as error:
        print(f"acl_hooks.py: {error}", file=sys.stderr)
        return 1
    given.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
