"""The folder of a test (tests/conftest.py): in memory, gone once the test has passed, there once it has failed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
SUITE = """
import pytest
from pathlib import Path

@pytest.fixture
def folder(tmp_path, request):
    Path(request.node.name).write_text(str(tmp_path))
    (tmp_path / "file").touch()

def test_passes(folder): pass
def test_fails(folder): assert False
@pytest.mark.on_disk
def test_on_disk(folder): pass
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    shutil.copy(CONFTEST, tmp_path)
    for name in ("allowed_skips.txt", "thorough.txt"):
        (tmp_path / name).touch()
    (tmp_path / "test_suite.py").write_text(SUITE)
    return tmp_path


def folders(suite: Path, conftest: str = "") -> dict[str, Path]:
    """Returns where each test had its folder. `conftest`: lines added to it."""
    with (suite / "conftest.py").open("a") as file:
        file.write(conftest)
    options = ("-q", "-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider", "--basetemp", "disk", "-rN")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=suite, capture_output=True, text=True, timeout=60
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    return {name: Path((suite / f"test_{name}").read_text()) for name in ("passes", "fails", "on_disk")}


def test_it_is_in_memory_and_stays_if_the_test_fails(suite: Path) -> None:
    found = folders(suite, "\nENOUGH = 0\n")
    assert {name for name, folder in found.items() if folder.is_relative_to("/dev/shm/")} >= {"passes", "fails"}
    assert (found["passes"].exists(), (found["fails"] / "file").exists()) == (False, True)
    assert found["on_disk"].is_relative_to(suite / "disk") and found["on_disk"].exists()
    shutil.rmtree(found["fails"])


def test_it_is_on_the_disk_where_memory_has_no_room(suite: Path) -> None:
    found = folders(suite, "\nENOUGH = 1 << 60\n")
    assert all(folder.is_relative_to(suite / "disk") for folder in found.values())
