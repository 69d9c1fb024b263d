"""The interposer alone: built with stand-ins for the other half of the shim, over a driver written for these tests.

Programs are C, run bare and preloaded in a process of their own with a deadline; a hang is a failure.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gcr import native

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
DEFINITIONS = ROOT / "shim/src/hooks/cuda.def"
DEADLINE_S = 60


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of cuda.def: the facts of a symbol. `macro` is GCR_HOOK, GCR_ALONE or GCR_ALIAS."""

    macro: str
    symbol: str
    base: str
    version: int
    stream: int
    kind: str
    parameters: str


LINE = re.compile(r"(GCR_\w+)\((\w+), (\w+), (\d+), ([01])(?:, (?:([A-Z_]+), )?\((.*?)\))?(?:, \(.*\))?\)")


def entries(text: str) -> list[Entry]:
    """Every line of a .def."""
    found = [LINE.fullmatch(line) for line in text.splitlines() if line.startswith("GCR_")]
    assert all(found), "a line of the .def has a shape this test cannot read"
    return [Entry(m[1], m[2], m[3], int(m[4]), int(m[5]), m[6] or "", m[7] or "") for m in found if m is not None]


@pytest.fixture(scope="session")
def listed() -> list[Entry]:
    return entries(DEFINITIONS.read_text())


def tool(name: str) -> str:
    """A build tool: beside the interpreter, as `make test` installs it, else on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is needed to build the tests"
    return found


def checked(command: Sequence[str | Path], **options: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for everything these tests build."""
    return tmp_path_factory.mktemp("hooks")


@pytest.fixture(scope="session")
def shim() -> Path:
    """Builds the interposer with stand-ins by the project's own rules: once, for several runs at the same time.

    Uses the shim's own build folder, if that was built from here: most of it is the same.
    """
    places = [Path(os.environ.get(native.VARIABLE, ROOT / "build/editable")), ROOT / "build/hooks"]
    build = next((place for place in places if _built_from_here(place)), places[-1])
    build.mkdir(parents=True, exist_ok=True)
    standins = ";".join(str(source) for source in sorted((HERE / "standins").glob("*.cpp")))
    with (build / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        checked([tool("cmake"), "-S", ROOT, "-B", build, f"-DGCR_SHIM_CALLS={standins}"])
        checked([tool("cmake"), "--build", build, "--parallel", "2", "--target", "gcr_shim_alone"])
    return build / "shim/alone/libgcr_shim.so"


def _built_from_here(folder: Path) -> bool:
    cache = folder / "CMakeCache.txt"
    return cache.exists() and f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" in cache.read_text()


Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compile_c(workshop: Path) -> Compile:
    """compile_c(output, source, *flags): a C file of programs/, or text, into a program or a shared object."""

    def compile_(output: str, source: str | Path, *flags: str) -> Path:
        path = HERE / "programs" / source if isinstance(source, str) else source
        target = workshop / output
        target.parent.mkdir(parents=True, exist_ok=True)
        shared = ["-shared"] if ".so" in output else []
        # -fPIC for programs too: without it they would hold copies of the driver's variables
        checked(["cc", "-O1", "-g", "-Wall", "-fPIC", "-D_GNU_SOURCE", *shared, path, "-o", target, *flags, "-ldl"])
        return target

    return compile_


@pytest.fixture(scope="session")
def driver(workshop: Path, compile_c: Compile, listed: list[Entry]) -> Path:
    """Returns the folder of a libcuda.so.1 in which each function says its name; bound to itself, as real ones are."""
    return build_driver(workshop, compile_c, listed, "driver", "-Wl,-Bsymbolic")


@pytest.fixture(scope="session")
def loose_driver(workshop: Path, compile_c: Compile, listed: list[Entry]) -> Path:
    """Returns the same, but a library that interposes its names is found in its stead, even by itself."""
    return build_driver(workshop, compile_c, listed, "loose")


def macro(entry: Entry, written: set[str]) -> str:
    if entry.macro == "GCR_ALIAS":
        return "ALIAS"
    return "WRITTEN_ABOVE" if entry.symbol in written else "SYMBOL"


def build_driver(workshop: Path, compile_c: Compile, listed: list[Entry], folder: str, *flags: str) -> Path:
    names = workshop / folder / "names.h"
    names.parent.mkdir(parents=True, exist_ok=True)
    written = set(re.findall(r"^int (cu\w+)\(", (HERE / "programs/driver.c").read_text(), re.M))
    lines = [f"{macro(e, written)}({e.symbol}, {e.base}, {e.version}, {e.stream})" for e in listed]
    names = workshop / folder / "names.h"
    names.parent.mkdir(parents=True, exist_ok=True)
    written = (
        set(re.findall(r"^int (cu\w+)\(.*\) ?[{]|^int (cuGetProcAddress\w*)", source, re.M))
        if (source := (HERE / "programs/driver.c").read_text())
        else set()
    )
    names.write_text("\n".join(lines) + "\n")
    compile_c(f"{folder}/libcuda.so.1", "driver.c", f"-I{names.parent}", "-Wl,-soname,libcuda.so.1", "-w", *flags)
    return names.parent


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture(scope="session")
def run() -> Run:
    """run(program, *arguments, preload=[…], path=folder of the driver): runs it to its end."""

    def run_(program: Path, *arguments: str, preload: Sequence[Path] = (), path: Path | None = None) -> Result:
        variables = {"PATH": os.environ["PATH"]}
        if preload:
            variables["LD_PRELOAD"] = ":".join(str(each) for each in preload)
        if path:
            variables["LD_LIBRARY_PATH"] = str(path)
        command = [str(program), *arguments]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=DEADLINE_S)
        return Result(done.returncode, done.stdout, done.stderr)

    return run_
