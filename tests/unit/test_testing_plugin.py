"""The pytest plugin for strangers, seen from outside: each case is a small suite in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gcr.testing import machine
from gcr.testing.machine import SimulatedMachine, alive, until

ROOT = Path(__file__).parents[2]
CONFTEST = 'pytest_plugins = ["gcr.testing.plugin"]\n'
IDLE = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    print(line.upper(), end="", flush=True)
"""


def suite(folder: Path, code: str) -> tuple[int, str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "idle.py").write_text(IDLE)
    (folder / "test_it.py").write_text(f"import sys\nimport pytest\n{code}")
    path = os.pathsep.join(filter(None, [str(ROOT / "backends/nvidia"), *sys.path]))
    env = {**os.environ, "PYTHONPATH": path, "GCR_PLUGINS": "gcr_nvidia"}
    options = ("-q", "-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider", "--basetemp", "temporary")
    command = [sys.executable, "-m", "pytest", *options, "test_it.py"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_a_machine_runs_jobs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    code, said = suite(
        tmp_path,
        """
@pytest.mark.parametrize("gcr_vendor", ["nvidia"])
def test_a_job(gcr_machine, gcr_victim):
    job = gcr_victim(sys.executable, "idle.py")
    assert job.ask("hello") == "HELLO"
    assert gcr_machine.job("victim")["backend"] == "nvidia"
    open("left", "w").write(f"{gcr_machine.daemon()} {gcr_machine.simulated}")
""",
    )
    assert code == 0, said
    daemon, simulated = (tmp_path / "left").read_text().split()
    until(lambda: not alive(int(daemon)), 30.0, "the daemon is gone")
    assert not Path(simulated).exists()


def test_daemons_are_ended_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a supervisor that still lives starts another."""
    made, ended = SimulatedMachine(tmp_path, vendor="nvidia"), list[int]()
    names = ("gcr.daemon", "gcr.supervisor")
    programs = [
        subprocess.Popen(["sh", "-c", "read line", each], env=made.env, stdin=subprocess.PIPE) for each in names
    ]
    monkeypatch.setattr(machine, "_kill", ended.append)
    made.close()
    for program in programs:
        program.communicate(timeout=30.0)
    assert ended == [each.pid for each in reversed(programs)]


def test_a_failed_test_shows_the_logs_and_a_silence_is_a_failure(tmp_path: Path) -> None:
    code, said = suite(
        tmp_path,
        """
@pytest.mark.parametrize("gcr_vendor", ["nvidia"])
def test_a_mute(gcr_machine):
    job = gcr_machine.run("mute", sys.executable, "-c", "import time; time.sleep(60)", ready=False)
    job.hear(patience=10.0)
""",
    )
    assert code == 1
    assert "mute said nothing for 10 s" in said
    assert "==== gcrd.log" in said


def test_a_vendor_must_be_chosen_and_must_have_a_simulated_device(tmp_path: Path) -> None:
    code, said = suite(tmp_path, "def test_none(gcr_machine): pass\n")
    assert code == 1 and "which backend's?" in said
    code, said = suite(
        tmp_path, '@pytest.mark.parametrize("gcr_vendor", ["intel"])\ndef test_other(gcr_device): pass\n'
    )
    assert code == 1 and "there is no simulated intel; there is: " in said


def test_no_one_else_s_run_is_changed_by_it() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert "pytest11" not in text
