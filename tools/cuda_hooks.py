# SPDX-License-Identifier: Apache-2.0
"""Writes shim/src/hooks/cuda.def from a vendor's CUDA headers and the reviewed table tools/cuda_classes.toml.

Run by hand when NVIDIA publishes a newer header; never by the build:

    python tools/cuda_hooks.py --headers .../include --output shim/src/hooks/cuda.def

Prototypes come from the C preprocessor, so that every ABI variant is seen as a compiler sees it; bases, versions and
stream variants come from the `PFN_<base>_v<version>[_ptds|_ptsz]` names of the Typedefs headers.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Each includes the header it gives the typedefs of.
HEADERS = ("cudaTypedefs.h", "cudaGLTypedefs.h", "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h", "cudaProfilerTypedefs.h")
CLASSES = Path(__file__).with_name("cuda_classes.toml")

# The interop headers want headers of other vendors; these are enough to read them, and say how we spell their types.
FOREIGN = {
    "GL/gl.h": "typedef unsigned int GLuint; typedef unsigned int GLenum;",
    "EGL/egl.h": "typedef int EGLint; typedef void* EGLImageKHR; typedef void* EGLStreamKHR; typedef void* EGLSyncKHR;",
    "EGL/eglext.h": "",
    "vdpau/vdpau.h": (
        "#include <stdint.h>\ntypedef uint32_t VdpDevice; typedef uint32_t VdpVideoSurface;"
        " typedef uint32_t VdpOutputSurface; typedef int VdpGetProcAddress();"
    ),
    "cudaProfiler.h": (  # missing beside its Typedefs in some of the vendor's own packages
        "#include <cuda.h>\ntypedef int CUoutput_mode; CUresult cuProfilerStart(void); CUresult cuProfilerStop(void);"
        " CUresult cuProfilerInitialize(const char *configFile, const char *outputFile, CUoutput_mode outputMode);"
    ),
}
SPELLING = {
    "GLuint": "unsigned int",
    "GLenum": "unsigned int",
    "EGLint": "int",
    "EGLImageKHR": "void*",
    "EGLStreamKHR": "void*",
    "EGLSyncKHR": "void*",
    "VdpDevice": "uint32_t",
    "VdpVideoSurface": "uint32_t",
    "VdpOutputSurface": "uint32_t",
    "VdpGetProcAddress": "void",
    "cuuint32_t": "uint32_t",
    "cuuint64_t": "uint64_t",
}
# Which modes of the headers show a symbol: as a program sees it, and with every variant.
MODES: tuple[tuple[str, ...], ...] = ((), ("CUDA_API_PER_THREAD_DEFAULT_STREAM",), ("__CUDA_API_VERSION_INTERNAL",))

PREAMBLE = """\
// SPDX-License-Identifier: Apache-2.0
// clang-format off
//
// Every symbol of the CUDA driver, once, sorted by name; every table of the shim is made from this list.
// Written by tools/cuda_hooks.py (prototypes, versions) from tools/cuda_classes.toml (what the shim does with each).
// Newest CUDA version in it: {version}.
//
//   GCR_HOOK(symbol, base, version, stream, kind, (parameters), (arguments))   wrapped and exported
//   GCR_ALONE(symbol, base, version, stream)                                   left alone
//   GCR_ALIAS(symbol, base, version, stream)                                   one more name for cuGetProcAddress
//
// base, version: what cuGetProcAddress is asked for; stream: 0 legacy default stream, 1 per-thread default stream.
#ifndef GCR_HOOK
#define GCR_HOOK(symbol, base, version, stream, kind, parameters, arguments)
#endif
#ifndef GCR_ALONE
#define GCR_ALONE(symbol, base, version, stream)
#endif
#ifndef GCR_ALIAS
#define GCR_ALIAS(symbol, base, version, stream)
#endif

"""
POSTAMBLE = """
#undef GCR_HOOK
#undef GCR_ALONE
#undef GCR_ALIAS
"""


class HeaderError(Exception):
    """The headers and the table do not agree; the message says where."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """One exported driver symbol; `version` as cuGetProcAddress counts, e.g. 12040 for CUDA 12.4."""

    name: str
    parameters: tuple[str, ...]
    base: str
    version: int
    stream: int


@dataclass(frozen=True, slots=True)
class Rule:
    """Symbols whose whole name matches `pattern` are treated as `kind`."""

    kind: str
    pattern: re.Pattern[str]


# ---- reading headers ------------------------------------------------------------------------------------------------
def preprocess(header: Path, defines: Sequence[str]) -> str:
    """The header after the C preprocessor, on one line."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FOREIGN.items():
            stub = Path(folder, name)
            stub.parent.mkdir(parents=True, exist_ok=True)
            stub.write_text(text)
        options = [f"-I{header.parent}", f"-I{folder}", *(f"-D{name}" for name in defines)]
        command = ["cc", "-E", "-P", *options, str(header)]
        text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return re.sub(r"\s+", " ", text)


def prototypes(include: Path) -> dict[str, tuple[str, ...]]:
    """Parameters of every function that any mode of any header declares."""
    found: dict[str, tuple[str, ...]] = {}
    for header in present(include):
        for mode in MODES:
            for name, parameters in re.findall(r"CUresult (cu[A-Z]\w*) ?\(([^()]*)\) ?;", preprocess(header, mode)):
                found.setdefault(name, split(parameters))
    return found


def typedefs(include: Path) -> dict[tuple[str, int], list[int]]:
    """Versions per (base, stream), ascending, from the Typedefs headers."""
    found: dict[tuple[str, int], set[int]] = {}
    for header in present(include):
        text = preprocess(header, MODES[2])
        for base, version, suffix in re.findall(r"PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\)", text):
            found.setdefault((base, int(bool(suffix))), set()).add(int(version))
    return {key: sorted(versions) for key, versions in found.items()}


def present(include: Path) -> list[Path]:
    """The headers which are there; the first must be."""
    paths = [include / name for name in HEADERS]
    if not paths[0].is_file():
        raise HeaderError(f"no {paths[0].name} in {include}")
    return [path for path in paths if path.is_file()]


def header_version(include: Path) -> int:
    """CUDA_VERSION of the header, e.g. 13050."""
    match = re.search(r"#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text())
    if match is None:
        raise HeaderError(f"{include / 'cuda.h'} does not say CUDA_VERSION")
    return int(match[1])


def split(parameters: str) -> tuple[str, ...]:
    """`const T *a, U b` in our spelling, one string a parameter; `void` is none."""
    if parameters.strip() in ("", "void"):
        return ()
    return tuple(spell(parameter) for parameter in parameters.split(","))


def spell(parameter: str) -> str:
    text = re.sub(r"\w+", lambda word: SPELLING.get(word[0], word[0]), parameter.strip())
    return re.sub(r" ?(\*+) ?", r"\1 ", text.replace("* *", "**")).strip()


# ---- putting names, versions and classes together -------------------------------------------------------------------
def taken_apart(name: str) -> tuple[str, int, int]:
    """(base, ABI number, stream) of a symbol's own name: cuMemcpyHtoD_v2_ptds is (cuMemcpyHtoD, 2, 1)."""
    match = re.fullmatch(r"(cu\w+?)(?:_v(\d))?(_ptds|_ptsz)?", name)
    assert match is not None, name
    return match[1], int(match[2] or 1), int(bool(match[3]))


def symbols(include: Path) -> list[Symbol]:
    """Every symbol the headers declare, sorted by name. Raises HeaderError where a version is missing."""
    declared, versions = prototypes(include), typedefs(include)
    groups: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for name in declared:
        if name != "cuGetProcAddress_v2_ptsz":  # an inline function of the header
            base, abi, stream = taken_apart(name)
            groups.setdefault((base, stream), []).append((abi, name))
    found: list[Symbol] = []
    for key, members in groups.items():
        for (_, name), version in zip(
            sorted(members), checked_versions(key[0], members, versions.get(key, [])), strict=True
        ):
            found.append(Symbol(name, declared[name], key[0], version, key[1]))
    return sorted(found, key=lambda symbol: symbol.name)


def checked_versions(base: str, members: Sequence[tuple[int, str]], known: list[int]) -> list[int]:
    """One version a member: the n-th ABI of a base is its n-th typedef."""
    if len(known) != len(members):
        raise HeaderError(f"{base} has symbols {sorted(name for _, name in members)} but typedef versions {known}")
    return known


def rules(table: Path = CLASSES) -> list[Rule]:
    """The reviewed table, in order."""
    entries = tomllib.loads(table.read_text())["rule"]
    return [Rule(entry["class"], re.compile("|".join(f"(?:{text})" for text in entry["symbols"]))) for entry in entries]


def classify(name: str, table: Iterable[Rule]) -> str:
    """The class of a symbol. Raises HeaderError when no rule knows it."""
    plain = re.sub(r"_pt[ds][sz]$", "", name)
    for rule in table:
        if rule.pattern.fullmatch(plain):
            return rule.kind
    raise HeaderError(f"{name} matches no rule of {CLASSES.name}: a person has to decide its class")


# ---- writing --------------------------------------------------------------------------------------------------------
def line(symbol: Symbol, kind: str) -> str:
    head = f"{symbol.name}, {symbol.base}, {symbol.version}, {symbol.stream}"
    parameters = f"({', '.join(symbol.parameters)})"
    if kind == "ALONE":
        return f"GCR_ALONE({head})"
    arguments = ", ".join(re.findall(r"(\w+)$", parameter)[0] for parameter in symbol.parameters)
    return f"GCR_HOOK({head}, {kind}, {parameters}, ({arguments}))"


def definitions(include: Path, table: Path = CLASSES) -> str:
    """The text of cuda.def for the headers in `include`."""
    known = rules(table)
    lines = [line(symbol, classify(symbol.name, known)) for symbol in symbols(include)]
    aliases = tomllib.loads(table.read_text()).get("alias", [])
    lines += [f"GCR_ALIAS({entry['symbol']}, {entry['base']}, {entry['version']}, 0)" for entry in aliases]
    return PREAMBLE.format(version=header_version(include)) + "\n".join(lines) + "\n" + POSTAMBLE


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--headers", type=Path, required=True, help="folder with cuda.h and cudaTypedefs.h")
    parser.add_argument("--output", type=Path, required=True, help="the .def to write")
    chosen = parser.parse_args(arguments)
    try:
        text = definitions(chosen.headers)
    except HeaderError as error:
        print(f"cuda_hooks: {error}", file=sys.stderr)
        return 1
    chosen.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
