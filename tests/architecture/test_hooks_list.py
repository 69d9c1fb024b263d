"""cuda.def against the vendor's headers: every function, every ABI variant of it, once, as the vendor has it.

The newest header comes with the package `nvidia-cuda-runtime` (a test dependency, not needed to build). Toolkits
installed on this machine are checked as well. What is read from a header here shares no code with tools/.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEFINITIONS = ROOT / "shim/src/hooks/cuda.def"
ABI_SOURCE = ROOT / "tests/preload/hooks/abi/cuda_abi.cpp"
GENERATOR = ROOT / "tools/cuda_hooks.py"
MODES = ([], ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"], ["-D__CUDA_API_VERSION_INTERNAL"])
INLINE_IN_THE_HEADER = {"cuGetProcAddress_v2_ptsz"}


def wheel_include() -> Path | None:
    """Returns the folder in which the package nvidia-cuda-runtime keeps cuda.h."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [Path(folder, "cu13/include") for folder in folders if Path(folder, "cu13/include/cuda.h").is_file()]
    return found[0] if found else None


TOOLKITS = sorted(Path("/usr/local").glob("cuda-1[3-9]*/include"))


@pytest.fixture(scope="module", params=[None, *TOOLKITS], ids=lambda folder: folder.parent.name if folder else "wheel")
def include(request: pytest.FixtureRequest) -> Path:
    """A folder with cuda.h: the package's, then that of each toolkit on this machine."""
    if request.param is not None:
        return request.param
    found = wheel_include()
    if found is None:
        pytest.skip("the package nvidia-cuda-runtime is not installed")
    return found


@pytest.fixture(scope="module")
def newest() -> Path:
    found = wheel_include()
    if found is None:
        pytest.skip("the package nvidia-cuda-runtime is not installed")
    return found


def preprocessed(folder: Path, mode: list[str]) -> str:
    command = ["cc", "-E", "-P", f"-I{folder}", *mode, str(folder / "cuda.h")]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def declared(folder: Path, mode: list[str]) -> set[str]:
    return set(re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", preprocessed(folder, mode))) - INLINE_IN_THE_HEADER


def listed_lines() -> list[list[str]]:
    """symbol, base, version, stream of every line that names a symbol for the first time."""
    lines = re.findall(r"^GCR_(?:HOOK|ALONE)\((\w+), (\w+), (\d+), (\d)", DEFINITIONS.read_text(), re.M)
    return [list(line) for line in lines]


def unclassified(folder: Path) -> set[str]:
    known = {line[0] for line in listed_lines()}
    return set().union(*(declared(folder, mode) for mode in MODES)) - known


def test_every_symbol_of_the_header_is_classified(include):
    assert unclassified(include) == set()


def test_no_symbol_is_listed_twice():
    assert [name for name, times in Counter(line[0] for line in listed_lines()).items() if times > 1] == []


def with_a_new_function(newest: Path, folder: Path) -> Path:
    """A copy of the headers in which the vendor has added one function."""
    for name in ("cuda.h", "cudaTypedefs.h"):
        shutil.copy(newest / name, folder)
    header, typedefs = folder / "cuda.h", folder / "cudaTypedefs.h"
    function, typedef = "CUresult CUDAAPI cuInit(", "typedef CUresult (CUDAAPI *PFN_cuInit_v2000)("
    added = "typedef CUresult (CUDAAPI *PFN_cuQuux_v14000)(int x);\n"
    header.write_text(header.read_text().replace(function, "CUresult CUDAAPI cuQuux(int x);\n" + function, 1))
    typedefs.write_text(typedefs.read_text().replace(typedef, added + typedef, 1))
    return folder


def test_a_function_the_vendor_adds_is_noticed(newest, tmp_path):
    assert unclassified(with_a_new_function(newest, tmp_path)) == {"cuQuux"}


def generate(folder: Path, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(GENERATOR), "--headers", str(folder), "--output", str(output)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_generator_refuses_an_unclassified_symbol(newest, tmp_path):
    done = generate(with_a_new_function(newest, tmp_path), tmp_path / "cuda.def")
    assert done.returncode == 1
    assert "cuQuux matches no rule" in done.stderr
    assert not (tmp_path / "cuda.def").exists()


def test_the_list_is_what_the_generator_writes(newest, tmp_path):
    done = generate(newest, tmp_path / "cuda.def")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cuda.def").read_text() == DEFINITIONS.read_text()


def test_versions_and_streams_are_the_vendors(include):
    """The n-th ABI of a name is its n-th typedef; a suffix tells the stream."""
    text = (include / "cudaTypedefs.h").read_text()
    typedefs = {(m[0], int(m[1]), bool(m[2])) for m in re.findall(r"PFN_(cu\w+?)_v(\d+)(_pt[ds][sz])?\)", text)}
    present = set().union(*(declared(include, mode) for mode in MODES))
    lines = [line for line in listed_lines() if line[0] in present]
    ours = {(base, int(version), stream == "1") for _, base, version, stream in lines}
    assert ours == typedefs
    assert all((stream == "1") == bool(re.search("_pt[ds][sz]$", symbol)) for symbol, _, _, stream in listed_lines())


def constants() -> list[str]:
    text = (ROOT / "shim/abi/cuda.h").read_text()
    return re.findall(r"^    (CU\w+) = \d+,", text, re.M)


@pytest.mark.parametrize("mode", MODES, ids=["default", "per-thread", "every variant"])
def test_our_abi_is_the_vendors(include, mode, tmp_path):
    known = {line[0] for line in listed_lines()}
    theirs = re.findall(r"\bCU\w+", (include / "cuda.h").read_text())
    shared = [name for name in constants() if name in set(theirs)]
    assert len(shared) > 80
    (tmp_path / "ours.h").write_text("".join(f"OURS({name})\n" for name in constants()))
    lines = [f"THEIRS({name})" for name in shared]
    lines += [f"DECLARED({name})" for name in sorted(declared(include, mode) & known)]
    (tmp_path / "theirs.h").write_text("\n".join(lines) + "\n")
    done = compile_abi(include, mode, tmp_path)
    assert done.returncode == 0, done.stderr[:4000]


def compile_abi(include: Path, mode: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    shim = ROOT / "shim"
    paths = [f"-I{folder}", f"-I{shim}", f"-I{shim / 'src'}", f"-isystem{include}"]
    command = ["c++", "-std=c++17", "-fsyntax-only", "-Wno-deprecated-declarations", *mode, *paths, str(ABI_SOURCE)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_every_reason_is_one_of_the_protocol():
    reasons = set(re.findall(r"REFUSE_([A-Z_]+)", DEFINITIONS.read_text()))
    protocol = re.findall(r"kReason(\w+) = \d+", (ROOT / "shim/include/gcr/codes.h").read_text())
    assert reasons <= {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper() for name in protocol}
