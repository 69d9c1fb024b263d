"""docs/writing-a-backend.md, followed to the letter in an empty folder: its commands, in their order, as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = ROOT / "docs" / "writing-a-backend.md"
EXAMPLE = ROOT / "docs" / "example-backend"
DEADLINE = 280.0  # it builds a shim and a simulated driver, beside other tests
pytestmark = [pytest.mark.timeout(300), pytest.mark.first]
SUITE = "python -m pytest -q tests\n"
QUICK = "'test_a_job_goes_and_comes_back or BackendContract'"
LOADER = {"dlsym", "dlvsym"}
COLLECT = """
import pytest, sys
for step in sys.argv[1:]:
    pytest.main(["tests", "--collect-only", "-q", "-k", step])
"""
NO_DEBUG_INFORMATION = '#!/bin/sh\nexec "$@" -g0\n'  # to write it takes a fifth of the compiler's time
COMMANDS = """
pip() { "$PYTHON" -m pip --disable-pip-version-check "$@"; }
gcr() { "$PYTHON" -m gcr "$@"; }
python() { "$PYTHON" "$@"; }
"""


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", TEXT.read_text(), re.MULTILINE | re.DOTALL)


def run(*command: str, seconds: float = 20.0, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> "Reader":
    """Returns a reader that has followed the text up to its last command, which runs the suite."""
    made = Reader(tmp_path_factory.mktemp("reader"))
    made.said = made.do("\n".join(blocks()).rpartition(SUITE)[0], made.folder)
    return made


class Reader:
    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, ""
        self.site = folder / "site"  # in place of the reader's environment, which this one must not become
        self.launcher = folder / "compile"
        self.launcher.write_text(NO_DEBUG_INFORMATION)
        self.launcher.chmod(0o700)

    def do(self, script: str, cwd: Path) -> str:
        path = os.pathsep.join([str(self.site), *filter(None, sys.path)])
        told = {"GCR": str(ROOT), "PYTHON": sys.executable, "PIP_TARGET": str(self.site), "PYTHONPATH": path}
        ours = {"GCR_PLUGINS": "", "PIP_NO_INDEX": "1", "SKBUILD_CMAKE_BUILD_TYPE": "Debug"}
        compiling = {f"CMAKE_{language}_COMPILER_LAUNCHER": str(self.launcher) for language in ("C", "CXX")}
        env = {**os.environ, **told, **ours, **compiling, "PYTHONDONTWRITEBYTECODE": "1"}
        return run("bash", "-c", f"set -eu\n{COMMANDS}\n{script}", seconds=DEADLINE, cwd=cwd, env=env)

    def passes(self, suite: str) -> None:
        last = self.do(suite, self.folder / "gcr-zinc").strip().splitlines()[-1]
        assert re.fullmatch(r"\d+ passed(, \d+ deselected)? in .*", last), last


def test_the_text_has_commands() -> None:
    assert len(blocks()) == 2
    assert blocks()[-1].endswith(SUITE)


def test_following_the_text_ends_with_a_backend_that_is_found(reader: Reader) -> None:
    assert "zinc  (gcr_zinc of gcr-zinc 1.0)" in reader.said
    reader.passes(f"{SUITE.strip()} -k {QUICK}")


@pytest.mark.slow
def test_and_with_a_suite_that_passes(reader: Reader) -> None:
    reader.passes(SUITE)


def test_each_step_of_the_text_has_tests(reader: Reader) -> None:
    steps = re.findall(r"^`python -m pytest tests -k (.*?)`", TEXT.read_text(), re.MULTILINE)
    said = reader.do(f"python -c '{COLLECT}' {' '.join(steps)}", reader.folder / "gcr-zinc")
    counts = [int(count) for count in re.findall(r"(\d+)/\d+ tests collected", said)]
    assert len(counts) == 3
    assert 5 <= counts[0] < counts[1] < counts[2]


def test_the_shim_needs_libc_alone_and_exports_the_list(reader: Reader, tmp_path: Path) -> None:
    shim = reader.site / "gcr_zinc" / "libzinc_shim.so"
    dynamic = run("readelf", "-dW", str(shim), cwd=tmp_path)
    assert set(re.findall(r"NEEDED.*\[(.*?)\]", dynamic)) <= {"libc.so.6", "ld-linux-x86-64.so.2"}
    exported = run("nm", "-D", "--defined-only", "--without-symbol-versions", str(shim), cwd=tmp_path)
    names = {line.split()[2] for line in exported.splitlines() if line.split()[1] in "TW"}
    assert names == hooked(reader.folder / "gcr-zinc" / "shim/vendor/hooks.def") | LOADER


def test_the_hooks_list_has_every_call_of_the_header() -> None:
    header = (EXAMPLE / "simulator/acme.h").read_text()
    declared = set(re.findall(r"^acmeResult (\w+)\(", header, re.MULTILINE))
    listed = hooked(EXAMPLE / "shim/vendor/hooks.def")
    assert {name for name in declared - listed if not name.startswith("acmeProcess")} == set()
    assert listed <= declared


def hooked(definitions: Path) -> set[str]:
    return set(re.findall(r"^GCR_HOOK\((\w+)", definitions.read_text(), re.MULTILINE))


def test_files_that_the_text_names_are_there() -> None:
    named = set(re.findall(r"`((?:shim|simulator|tests)/[\w./]+|\w+\.(?:py|txt))`", TEXT.read_text()))
    for name in named:
        assert (EXAMPLE / name).exists() or (EXAMPLE / "src/gcr_acme" / name).exists(), name
    assert len(named) > 5
