"""`gcr demo`, whole: it succeeds, says of every line that it is simulated, and fails when something is off."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from gcr import native
from gcr.demo import cycle

from .conftest import Gcr, Ran, gcr_command

sys.path.insert(0, str(Path(__file__).parents[2] / "victims"))

import hip_python

DEADLINE = 110.0
GONE = ("time.sleep(PAUSE_S)", "step == 3 and IN_GCR and sys.exit(9)", "gcr run: the program computes")
NOT_ALLOCATED = ('print(f"allocated {size}"', 'print("allocated some"', "another program wants 192.0 MiB")


@pytest.fixture(autouse=True)
def built() -> None:
    try:
        native.shim_path()
        native.sim_dir("nvidia")
    except native.NativeMissing as missing:
        pytest.skip(missing.message)


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields the folder for logs of failed demonstrations. Its path is short, for sockets of the simulated machine."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def demo(*words: str, env: Mapping[str, str] = MappingProxyType({})) -> Ran:
    done = subprocess.run(
        gcr_command(["demo", *words]), env={**os.environ, **env}, capture_output=True, text=True, timeout=DEADLINE
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_the_demonstration_succeeds_and_every_line_says_simulated(vendor: str) -> None:
    path = os.pathsep.join([str(hip_python.folder("10")), os.environ.get("PYTHONPATH", "")])
    ran = demo("--backend", vendor, env={"PYTHONPATH": path})
    assert ran.err == ""
    succeeds(ran)


def test_without_any_extra_there_is_a_demonstration_all_the_same(tmp_path: Path) -> None:
    """It is that on Ascend's devices."""
    for module in ("cuda", "hip", "pynvml"):
        (tmp_path / f"{module}.py").write_text("raise ImportError('not here')\n")
    ran = demo(env={"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])})
    assert "SIMULATED  the device of ascend" in ran.err
    assert "pip install 'gpu-cr[nvidia]'" in ran.err
    succeeds(ran)


def succeeds(ran: Ran) -> None:
    lines = ran.out.splitlines()
    assert (ran.code, len(lines)) == (0, 10), ran.err
    assert all(line.startswith("SIMULATED  ok ") for line in lines)
    assert lines[-1].split()[-1] == lines[-3].split()[-1], "the digest without gcr and the one after a cycle"


def test_a_step_that_fails_fails_the_demonstration(tmp_path: Path) -> None:
    rules = tmp_path / "faults"
    rules.write_text("checkpoint.quiesced fail\n")
    ran = demo("--json", env={"GCR_FAULTS": str(rules)})
    assert ran.code == 4
    assert ran.json["error"]["code"] == "demo_failed"
    assert "SIMULATED" in ran.json["error"]["message"]


@pytest.mark.parametrize(
    ("was", "becomes", "step"),
    [
        ('print(f"digest', 'print(f"digest of {time.monotonic()}', "as many steps without gcr"),
        pytest.param(*GONE, marks=pytest.mark.slow),
        pytest.param(*NOT_ALLOCATED, marks=pytest.mark.slow),
    ],
)
def test_what_is_off_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: str, becomes: str, step: str
) -> None:
    text = cycle.PROGRAM.read_text()
    assert was in text
    changed = tmp_path / "program.py"
    (tmp_path / "devices").symlink_to(cycle.PROGRAM.with_name("devices"))
    changed.write_text(text.replace(was, becomes.replace("IN_GCR", "'GCR_JOB' in __import__('os').environ")))
    monkeypatch.setattr(cycle, "PROGRAM", changed)
    assert next(found.name for found in cycle.steps(DEADLINE) if not found.ok) == step


def test_a_vendor_without_one_is_told_which_have_one(gcr: Gcr) -> None:
    ran = gcr("demo", "--backend", "acme")
    assert (ran.code, ran.out) == (2, "")
    assert "nvidia, amd, ascend" in ran.err


@pytest.mark.parametrize(("vendor", "module"), [("amd", "hip"), ("nvidia", "cuda")])
def test_without_its_bindings_nothing_is_started(tmp_path: Path, temporary: Path, vendor: str, module: str) -> None:
    (tmp_path / f"{module}.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": path}
    ran = demo("--backend", vendor, env=env)
    assert (ran.code, ran.out) == (3, "")
    assert "not here" in ran.err
    assert f"try: pip install 'gpu-cr[{vendor}]'" in ran.err
    as_json = demo("--backend", vendor, "--json", env=env)
    assert (as_json.code, as_json.json["error"]["code"]) == (3, "backend_missing")
    assert list(temporary.iterdir()) == []


def test_without_a_simulated_driver_no_folder_is_left(tmp_path: Path, temporary: Path) -> None:
    env = {"GCR_NATIVE_DIR": str(tmp_path)}
    ran = demo("--backend", "ascend", "--json", env=env)
    assert (ran.code, ran.json["error"]["code"]) == (3, "native_missing")
    assert list(temporary.iterdir()) == []


def test_a_failure_is_said_once_and_names_logs_only_where_there_are_some(temporary: Path) -> None:
    ran = demo("--backend", "ascend", "--timeout", "0.1")
    assert ran.code == 4
    assert (ran.out + ran.err).count("within the time that was left") == 1
    assert "logs:" not in ran.err
    assert list(temporary.iterdir()) == []


def test_a_demonstration_that_takes_too_long_fails(gcr: Gcr) -> None:
    ran = gcr("demo", "--timeout", "0.5", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (4, "demo_failed")


@pytest.mark.parametrize("part", ["program.py", *(f"devices/{vendor}.py" for vendor in cycle.VENDORS)])
def test_the_program_is_an_ordinary_one(part: str) -> None:
    text = (cycle.PROGRAM.parent / part).read_text()
    assert "import gcr" not in text
    assert "from gcr" not in text
