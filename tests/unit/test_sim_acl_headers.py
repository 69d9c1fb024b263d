"""Our declarations of ACL beside the vendor's own, where `GCR_ACL_HEADERS` names a folder that has `acl/acl_rt.h`.

Such folders: `include` of an installed CANN, or of an unpacked torch-npu wheel. Enums are compared as what they are
passed as, so types are compared by name, sizes, offsets and values by compiling the same program against both.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

OURS = Path(__file__).parents[2] / "shim" / "abi" / "acl.h"
SECONDS = 60
LATER = {"aclrtMemGetAddressRange", "aclrtReserveMemAddressNoUCMemory"}
CALLBACKS = {"aclrtSnapShotCallbackRegister", "aclrtSnapShotCallbackUnregister"}  # since 9.0
SNAPSHOT = {
    f"aclrtSnapShotProcess{step}" for step in ("Lock", "Unlock", "Backup", "Restore")
}  # no parameters until 9.1
NOT_IN_ACL = {"rtSnapShotProcessGetState"}  # of libruntime.so; its header is not public in every release
OWN_CONSTANTS = re.compile(r"ACL_MEM_MALLOC_PAGE_MASK|RT_PROCESS_STATE_\w+")
STRUCTURES = {
    "aclrtMemLocation": ("id", "type"),
    "aclrtPhysicalMemProp": ("handleType", "allocationType", "memAttr", "location", "reserve"),
    "aclrtMemAccessDesc": ("flags", "location", "rsv"),
    "aclrtPtrAttributes": ("location", "pageSize", "rsv"),
    "aclCANNPackageVersion": ("version", "majorVersion", "minorVersion", "releaseVersion", "patchVersion"),
}


@pytest.fixture
def vendor() -> Path:
    folder = os.environ.get("GCR_ACL_HEADERS")
    if not folder:
        pytest.skip("GCR_ACL_HEADERS names no folder with the vendor's headers")
    return Path(folder)


def without_comments(text: str) -> str:
    return re.sub(r"//.*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))


def parameter_type(text: str) -> str:
    """`const void *src` is of type `const void*`; const beside the name says nothing to a caller."""
    words = re.sub(r"\s+", " ", re.sub(r"\s*\*\s*", "* ", text)).replace("* *", "**").strip()
    words = re.sub(r"^(?:const )?(\w+\*) const ", r"\1 ", words)
    return "" if words == "void" else re.sub(r"\s*\b\w+$", "", words)


def declarations(text: str) -> dict[str, tuple[str, ...]]:
    pattern = r"\b(?:aclError|rtError_t|const char\s*\*)\s*((?:acl|rtSnap)\w+)\s*\(([^;{}()]*)\)\s*;"
    found = re.findall(pattern, without_comments(text))
    return {name: tuple(filter(None, map(parameter_type, each.split(",")))) for name, each in found}


def wanted_facts(known: str) -> list[str]:
    """Expressions to compare: of our constants, those that the vendor's text has."""
    enums = "".join(re.findall(r"\benum {.*?};", without_comments(OURS.read_text()), re.DOTALL))
    constants = sorted(set(re.findall(r"\b((?:ACL|RT)_[A-Z0-9_]+)\b", enums)))
    wanted = [each for each in constants if not OWN_CONSTANTS.fullmatch(each) and re.search(rf"\b{each}\b", known)]
    for name, fields in STRUCTURES.items():
        wanted += [f"sizeof({name})", *(f"offsetof({name}, {field})" for field in fields)]
    return wanted


def facts(include: str, wanted: Sequence[str], program: Path, *options: str) -> list[str]:
    """Sizes, offsets and values as a program says that includes `include`."""
    lines = "".join(f'printf("%s %d\\n", "{each}", (int)({each}));\n' for each in wanted)
    text = f"#include <stddef.h>\n#include <stdio.h>\n{include}\nint main(void) {{\n{lines}return 0; }}\n"
    program.with_suffix(".c").write_text(text)
    subprocess.run(["cc", "-w", *options, "-o", program, program.with_suffix(".c")], check=True, timeout=SECONDS)
    done = subprocess.run([program], check=True, timeout=SECONDS, capture_output=True, text=True)
    return done.stdout.splitlines()


def test_parameters_are_those_of_the_vendors_header(vendor: Path) -> None:
    theirs = declarations((vendor / "acl/acl_rt.h").read_text() + (vendor / "acl/acl_base_rt.h").read_text())
    ours = declarations(OURS.read_text())
    differ = {name for name, parameters in ours.items() if theirs.get(name) != parameters} - NOT_IN_ACL
    if "aclrtSnapShotCallbackRegister" not in theirs:
        differ -= LATER | CALLBACKS
    if theirs.get("aclrtSnapShotProcessLock") == ():
        differ -= SNAPSHOT
    assert differ == set()


def test_structures_and_values_are_those_of_the_vendors_header(vendor: Path, tmp_path: Path) -> None:
    names = ("acl/acl_rt.h", "acl/acl_base_rt.h", "acl/error_codes/rt_error_codes.h")
    wanted = wanted_facts("".join((vendor / name).read_text() for name in names))
    include = "".join(f'#include "{name}"\n' for name in names)
    ours = facts(f'#include "{OURS}"', wanted, tmp_path / "ours")
    assert len(ours) > 80
    assert ours == facts(include, wanted, tmp_path / "theirs", f"-I{vendor}")
