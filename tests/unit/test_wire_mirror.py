"""The mirror of the wire protocol against codes.h and wire.h: by a parser of their text, and by a C compiler."""

import re
import shutil
import subprocess
import typing
from enum import Enum
from pathlib import Path
from struct import calcsize

import pytest

from gcr.protocol import agentwire, wire
from gcr.protocol.record import Record

INCLUDE = Path(__file__).parents[2] / "shim/include"
HEADERS = [INCLUDE / "gcr/codes.h", INCLUDE / "gcr/wire.h"]
COVERAGE = Path(__file__).parents[2] / "shim/src/core/coverage.cpp"
CODES = {"uint8_t": "B", "uint16_t": "H", "uint32_t": "I", "int32_t": "i", "uint64_t": "Q", "char": "s"}
PREFIXES = {
    "AgentFlag": "kFlag",
    "WelcomeFlag": "kWelcome",
    "HandleFlag": "kHandle",
    "ParkedFlag": "kParked",
    "WalkKind": "kWalk",
    "SharedFlag": "kShared",
    "Reason": "kReason",
    "Refuse": "kRefuse",
    "SnapshotStep": "kStep",
    "SnapshotPhase": "kSnapshot",
}
CONSTANTS = {"REPLY": "kReply", "ERROR": "kError"}  # of FrameType, but no types of a request


def written() -> str:
    return "".join(header.read_text() for header in HEADERS)


def header_text() -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", written(), flags=re.DOTALL)


def header_structs() -> dict[str, list[tuple[str, str]]]:
    """Per struct, the name and struct code of each field."""
    found = {}
    for name, body in re.findall(r"struct (\w+) \{(.*?)\};", header_text(), flags=re.DOTALL):
        lines = re.findall(r"(\w+) (\w+)(?:\[(\d+)\])?;", body)
        found[name] = [(field, f"{length}s" if length else CODES[kind]) for kind, field, length in lines]
    return found


def header_enums() -> dict[str, dict[str, int]]:
    return {
        name: {key: int(value, 0) for key, value in re.findall(r"(\w+) = (\w+)", body)}
        for name, body in re.findall(r"enum (\w*) ?\{(.*?)\};", header_text(), flags=re.DOTALL)
        if name
    }


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


def records() -> dict[str, type[Record]]:
    there = {**vars(wire), **vars(agentwire)}.items()
    found = {name: kind for name, kind in there if isinstance(kind, type) and issubclass(kind, Record)}
    del found["Record"]
    found["IdList"] = found.pop("IdListHead")
    return found


def enums() -> dict[str, type[Enum]]:
    return {name: k for name, k in vars(wire).items() if isinstance(k, type) and issubclass(k, Enum) and len(k)}


def test_the_header_has_what_the_parser_looks_for():
    text = written()
    assert len(header_structs()) == text.count("\nstruct ") >= 17
    assert len(header_enums()) == text.count("\nenum ") - text.count("\nenum {") >= 8


def test_every_struct_is_mirrored_field_by_field():
    assert {name: list(kind.FIELDS) for name, kind in records().items()} == header_structs()


def test_every_enum_is_mirrored_member_by_member():
    expected = {}
    for name, members in header_enums().items():
        prefix = PREFIXES.get(name, "k")
        expected[name] = {snake(key.removeprefix(prefix)): value for key, value in members.items()}
    for name in CONSTANTS:
        assert expected["FrameType"].pop(name) == getattr(wire, name)
    assert {name: {m.name: m.value for m in kind} for name, kind in enums().items()} == expected


@pytest.mark.parametrize("name", ["Magic", "Version", "MaxFrame", "MaxDescriptors", "OccupiedDevices"])
def test_the_constants_agree(name):
    (value,) = re.findall(rf"k{name} = (\w+?)u?\b", header_text())
    assert getattr(wire, snake(name)) == int(value, 0)


def test_the_reasons_that_the_shim_lets_pass_have_no_words_of_a_refusal():
    body = COVERAGE.read_text().partition("Refuse refuse_for(Reason reason) {")[2].partition("\n}\n")[0]
    groups = re.findall(r"((?:\s*case wire::kReason\w+:)+)\s*return wire::(\w+);", body)
    cases = {
        answer: {wire.Reason[snake(name)] for name in re.findall(r"kReason(\w+)", names)} for names, answer in groups
    }
    assert cases == {"kRefuseNone": wire.CARRIED_REASONS, "kRefuseWhole": wire.WHOLE_REASONS}
    assert wire.CARRIED_REASONS | wire.REFUSED_REASONS | {wire.Reason.COUNT} == set(wire.Reason)


def test_unreserved_fields_are_the_constructor_s():
    for name, kind in records().items():
        wanted = [field for field, _ in kind.FIELDS if field != "reserved"]
        assert list(kind.__struct_fields__) == wanted, name
        assert set(typing.get_type_hints(kind)) >= set(wanted)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> dict[str, int]:
    """Returns the C compiler's view of the header: size and offsets of every struct, value of every enumerator."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "a C compiler is a prerequisite of this repository"
    lines = []
    for name, members in header_structs().items():
        lines.append(f'P("{name}", sizeof(struct {name}))')
        lines += [f'P("{name}.{field}", offsetof(struct {name}, {field}))' for field, _ in members]
    for name, members in header_enums().items():
        lines += [f'P("{name}:{key}", {key})' for key in members]
    source = tmp_path_factory.mktemp("mirror") / "mirror.c"
    text = '#include <stdio.h>\n#include "gcr/wire.h"\n#define P(n, v) printf("%s %lld\\n", n, (long long)(v));\n'
    source.write_text(f"{text}int main(void) {{ {' '.join(lines)} return 0; }}\n")
    program = source.with_suffix("")
    command = [compiler, "-Wall", "-Werror", f"-I{INCLUDE}", "-o", program, source]
    subprocess.run(command, check=True, timeout=60)
    output = subprocess.run([program], check=True, timeout=10, capture_output=True, text=True).stdout
    return {key: int(value) for key, value in (line.split() for line in output.splitlines())}


def test_sizes_and_offsets_are_the_compiler_s(compiled):
    for name, kind in records().items():
        assert compiled[name] == kind.SIZE, name
        place = 0
        for field, code in kind.FIELDS:
            assert place == compiled[f"{name}.{field}"], f"{name}.{field}"
            place += calcsize("<" + code)


def test_enumerators_are_the_compiler_s(compiled):
    for name, members in header_enums().items():
        for key, value in members.items():
            assert compiled[f"{name}:{key}"] == value, key
