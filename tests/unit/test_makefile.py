"""The commands of `make`, and the script that brings CI a browser."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "install_browser.sh"


def would(*words: str) -> str:
    """Returns the commands of a target with all its stamps out of date."""
    command = ["make", "--dry-run", "--always-make", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_part_of_the_tests_builds_no_sanitized_tree() -> None:
    assert "GCR_SANITIZE=thread" in would("test")
    part = would("test", "PYTEST_ARGS=tests/unit -k wire")
    assert "pytest tests/unit -k wire" in part
    assert "SANITIZE" not in part


def test_what_must_run_alone_is_run_so_wherever_it_is() -> None:
    files = {path for path in (ROOT / "tests").rglob("test_*.py") if "@pytest.mark.alone" in path.read_text()}
    (line,) = [line for line in would("test").splitlines() if '"alone and not slow"' in line]
    assert {str(path.relative_to(ROOT)) for path in files} <= set(line.split())


def test_the_demonstration_tells_what_it_builds_and_that_it_is_simulated() -> None:
    told = [line for line in would("demo").splitlines() if line.startswith("echo ")]
    assert len(told) == 2 and all("SIMULATED" in line for line in told), told


@pytest.mark.parametrize(
    ("programs", "says"),
    [
        ((), "there is no apt-get"),
        (("apt-get", "id"), "only root may"),
        (("chromium",), "is there"),
    ],
)
def test_the_browser_is_no_obstacle(tmp_path: Path, programs: tuple[str, ...], says: str) -> None:
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\necho 1000\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(["/bin/sh", str(SCRIPT)], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout


@pytest.mark.parametrize(("code", "says"), [(0, "was installed"), (100, "apt-get failed")])
def test_a_failed_installation_fails_nothing(tmp_path: Path, code: int, says: str) -> None:
    for name, body in (("apt-get", f"exit {code}"), ("id", "echo 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(["/bin/sh", str(SCRIPT)], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout
