"""acl.def: every function of ACL once, with the parameters that our header and the vendor's have.

The vendor's headers are compared where `GCR_ACL_HEADERS` names a folder that has `acl/acl_rt.h`: `include` of an
installed CANN 9.1, or of an unpacked torch-npu wheel. What is read from a header here shares no code with tools/.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEFINITIONS = ROOT / "shim/src/hooks/acl.def"
OURS = ROOT / "shim/abi/acl.h"
GENERATOR = ROOT / "tools/acl_hooks.py"
NO_CODE = {"aclrtGetSocName", "aclGetRecentErrMsg"}  # answer with text


def hooked() -> dict[str, tuple[str, str]]:
    """Symbol to kind and parameters."""
    lines = re.findall(r"^GCR_HOOK\((\w+), (\w+), \((.*?)\), \(.*\)\)$", DEFINITIONS.read_text(), re.M)
    return {symbol: (kind, parameters) for symbol, kind, parameters in lines}


def alone() -> list[str]:
    return re.findall(r"^GCR_ALONE\((\w+)\)$", DEFINITIONS.read_text(), re.M)


def types(parameters: str) -> list[str]:
    """`void** devPtr, size_t size` as `void**`, `size_t`."""
    words = [each.strip() for each in re.sub(r"\s+", " ", parameters).split(",")]
    return [re.sub(r" ?(\*+) ?", r"\1", each.rpartition(" ")[0]) for each in words if each not in ("", "void")]


def our_declarations() -> dict[str, list[str]]:
    text = re.sub(r"//.*", "", OURS.read_text())
    found = re.findall(r"^(?:aclError|rtError_t) (\w+)\(([^;]*)\);", text, re.M)
    return {name: types(inside) for name, inside in found}


def test_every_line_is_read_here():
    lines = [line for line in DEFINITIONS.read_text().splitlines() if re.match(r"GCR_(HOOK|ALONE)\(", line)]
    assert len(lines) == len(hooked()) + len(alone()) > 600


def test_no_symbol_is_listed_twice_and_all_are_sorted():
    names = re.findall(r"^GCR_(?:HOOK|ALONE)\((\w+)", DEFINITIONS.read_text(), re.M)
    assert [name for name, times in Counter(names).items() if times > 1] == []
    assert names == sorted(names)


def test_what_our_header_declares_is_listed_with_the_same_parameters():
    listed = hooked()
    ours = our_declarations()
    assert len(ours) > 80
    assert {name: types(listed[name][1]) for name in ours} == ours
    assert set(alone()) >= NO_CODE


def test_what_takes_or_gives_a_handle_is_answered_by_the_shim():
    """A handle that reached the runtime untranslated would be none."""
    kinds = {kind for kind, parameters in hooked().values() if "aclrtDrvMemHandle" in parameters}
    assert kinds == {"ALLOCATE"}


def after_prefix(name: str, word: str) -> bool:
    return re.match(rf"(aclrt|aclmdl|aclmdlRI|aclop|rts?){word}", name) is not None


@pytest.mark.parametrize("word", ["Launch", "Memcpy", "Memset", "Execute", "RecordEvent", "KernelLaunch"])
def test_work_waits_at_the_gate(word: str):
    passing = {name: kind for name, (kind, _) in hooked().items() if kind != "ENQUEUE" and after_prefix(name, word)}
    assert passing == {}


def test_waits_are_never_gated():
    waiting = {kind for name, (kind, _) in hooked().items() if name.startswith("aclrtSynchronize")}
    assert waiting == {"PASSIVE"}


@pytest.fixture
def vendor() -> Path:
    folder = os.environ.get("GCR_ACL_HEADERS")
    if not folder:
        pytest.skip("GCR_ACL_HEADERS names no folder with the vendor's headers")
    return Path(folder)


def declared(folder: Path) -> set[str]:
    """Every function of the public headers that returns an error code."""
    found: set[str] = set()
    for header in {*(folder / "acl").glob("*.h")} - {folder / "acl/super_kernel.h"}:  # a library of its own
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header.read_text(errors="replace"), flags=re.DOTALL)
        found |= set(re.findall(r"\baclError\s+(acl[a-z]*[A-Z]\w*)\s*\(", text))
    return found


def test_every_symbol_of_the_vendors_headers_is_classified(vendor: Path):
    found = declared(vendor)
    assert len(found) > 400
    assert found - set(hooked()) - set(alone()) == set()


def test_the_list_is_what_the_generator_writes(vendor: Path, tmp_path: Path):
    output = tmp_path / "acl.def"
    command = [sys.executable, str(GENERATOR), "--headers", str(vendor), "--output", str(output)]
    subprocess.run(command, check=True, timeout=120)
    ours = set(DEFINITIONS.read_text().splitlines())
    assert [line for line in output.read_text().splitlines() if line not in ours] == []


def test_the_generator_refuses_an_unclassified_symbol(vendor: Path, tmp_path: Path):
    (tmp_path / "acl").mkdir()
    for header in [*(vendor / "acl").glob("*.h"), *(vendor / "acl").glob("*/*.h")]:
        target = tmp_path / header.relative_to(vendor)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(header.read_bytes())
    text = (tmp_path / "acl/acl_rt.h").read_text()
    call = "aclError aclrtGetVersion("
    added = "aclError aclquuxFrobnicate(int32_t x);\nACL_FUNC_VISIBILITY "
    (tmp_path / "acl/acl_rt.h").write_text(text.replace(call, added + call, 1))
    command = [sys.executable, str(GENERATOR), "--headers", str(tmp_path), "--output", str(tmp_path / "acl.def")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, (tmp_path / "acl.def").exists()) == (1, False)
    assert "aclquuxFrobnicate matches no rule" in done.stderr
