"""hip.def against the vendor's declarations: every function of the runtime, once, with a class chosen by hand.

There is no ROCm on PyPI; hip-python lists every function, and `make` fetches it before the tests. Names are read here
by code that shares nothing with tools/.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "victims"))

import hip_python

ROOT = Path(__file__).parents[2]
DEFINITIONS = ROOT / "shim/src/hooks/hip.def"
GENERATOR = ROOT / "tools/hip_hooks.py"
SIMULATED = ROOT / "shim/sim/hip/symbols.def"


def listed() -> list[str]:
    return re.findall(r"^GCR_(?:HOOK|ALONE)\((\w+)", DEFINITIONS.read_text(), re.M)


def declarations(generation: str) -> Path:
    folder = hip_python.folder(generation)
    return folder / ("hip/chip.pxd" if generation == "7.2" else "rocm/bindings/cyhip.pxd")


def functions(path: Path) -> set[str]:
    return {line.split("(")[0].split()[-1].lstrip("*") for line in path.read_text().splitlines() if is_function(line)}


def is_function(line: str) -> bool:
    return re.match(r"cdef [^(]*\bhip[A-Z]\w*\(", line) is not None


@pytest.mark.parametrize("generation", hip_python.REQUIREMENTS)
def test_every_function_is_classified(generation: str) -> None:
    found = functions(declarations(generation))
    assert len(found) > 450
    assert found - set(listed()) == set()


def test_every_symbol_of_the_simulated_runtime_is_classified() -> None:
    """Its list was compared with a real library's. What starts with __hip is called by what compilers write."""
    names = re.findall(r"^(?:API|PLAIN)\([\w.]+, (hip\w+)", SIMULATED.read_text(), re.M)
    assert len(names) > 180
    assert set(names) - set(listed()) == set()


def test_no_symbol_is_listed_twice() -> None:
    assert [name for name, times in Counter(listed()).items() if times > 1] == []


def generate(source: Path, output: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(GENERATOR), "--declarations", str(source), "--output", str(output)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_list_is_what_the_generator_writes(tmp_path: Path) -> None:
    done = generate(declarations("10"), tmp_path / "hip.def")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "hip.def").read_text() == DEFINITIONS.read_text()


def test_a_function_the_vendor_adds_is_noticed(tmp_path: Path) -> None:
    text = declarations("10").read_text()
    added = "\ncdef hipError_t hipQuux(int x) except? hipErrorInitializationError nogil\n"
    (tmp_path / "newer.pxd").write_text(text + added)
    assert functions(tmp_path / "newer.pxd") - set(listed()) == {"hipQuux"}
    done = generate(tmp_path / "newer.pxd", tmp_path / "hip.def")
    assert done.returncode == 1
    assert "hipQuux matches no rule" in done.stderr
    assert not (tmp_path / "hip.def").exists()


def test_a_struct_by_value_without_a_description_is_noticed(tmp_path: Path) -> None:
    text = declarations("10").read_text()
    added = "\ncdef hipError_t hipMemcpyQuux(hipQuux q) except? hipErrorInitializationError nogil\n"
    (tmp_path / "newer.pxd").write_text(text + added)
    assert "hipQuux is passed by value" in generate(tmp_path / "newer.pxd", tmp_path / "hip.def").stderr


def test_every_reason_is_one_of_the_protocol() -> None:
    reasons = set(re.findall(r"REFUSE_([A-Z_]+)", DEFINITIONS.read_text())) - {""}
    protocol = re.findall(r"kReason(\w+) = \d+", (ROOT / "shim/include/gcr/codes.h").read_text())
    assert reasons <= {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper() for name in protocol}
