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
LOADER = {"dlsym", "dlvsym"}
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
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which the text was followed, and what its last block said."""
    folder = tmp_path_factory.mktemp("reader")
    site = folder / "site"  # in place of the reader's environment, which this one must not become
    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    told = {"GCR": str(ROOT), "PYTHON": sys.executable, "PIP_TARGET": str(site), "PYTHONPATH": path, "GCR_PLUGINS": ""}
    env = {
        **os.environ,
        **told,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PIP_NO_INDEX": "1",
        "SKBUILD_CMAKE_BUILD_TYPE": "Debug",
    }
    script = "set -eu\n" + COMMANDS + "\n".join(blocks())
    return folder, run("bash", "-c", script, seconds=DEADLINE, cwd=folder, env=env)


def test_the_text_has_commands() -> None:
    assert len(blocks()) == 2


def test_following_the_text_ends_with_a_suite_that_passes(followed: tuple[Path, str]) -> None:
    _folder, said = followed
    assert "zinc  (gcr_zinc of gcr-zinc 1.0)" in said
    last = said.strip().splitlines()[-1]
    assert re.fullmatch(r"\d+ passed in .*", last), last


def test_each_step_of_the_text_has_tests(followed: tuple[Path, str]) -> None:
    folder, _said = followed
    path = os.pathsep.join([str(folder / "site"), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    steps = re.findall(r"^`python -m pytest tests -k (.*?)`", TEXT.read_text(), re.MULTILINE)
    chosen = [
        run(
            *(sys.executable, "-m", "pytest", "tests", "-k", step.strip('"'), "--collect-only", "-q"),
            cwd=folder / "gcr-zinc",
            env=env,
        )
        for step in steps
    ]
    counts = [int(re.search(r"(\d+)/\d+ tests collected", said)[1]) for said in chosen]  # type: ignore[index]
    assert len(counts) == 3
    assert 5 <= counts[0] < counts[1] < counts[2]


def test_the_shim_needs_libc_alone_and_exports_the_list(followed: tuple[Path, str], tmp_path: Path) -> None:
    folder, _said = followed
    shim = folder / "site" / "gcr_zinc" / "libzinc_shim.so"
    dynamic = run("readelf", "-dW", str(shim), cwd=tmp_path)
    assert set(re.findall(r"NEEDED.*\[(.*?)\]", dynamic)) <= {"libc.so.6", "ld-linux-x86-64.so.2"}
    exported = run("nm", "-D", "--defined-only", "--without-symbol-versions", str(shim), cwd=tmp_path)
    names = {line.split()[2] for line in exported.splitlines() if line.split()[1] in "TW"}
    assert names == hooked(folder / "gcr-zinc" / "shim/vendor/hooks.def") | LOADER


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
