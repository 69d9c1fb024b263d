"""The conformance program on the simulator, compared line by line with what a real device answered, once recorded."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "native" / "sim"))

from simulated import ROOT, Machine

SOURCES = ROOT / "tests" / "contract" / "conformance"
RECORDED = SOURCES / "recorded_h200.txt"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    assert compiler, "a C compiler is needed"
    made = tmp_path_factory.mktemp("conformance") / "cuda_conformance"
    command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Werror", "-o", str(made)]
    subprocess.run([*command, *map(str, sorted(SOURCES.glob("*.c"))), "-ldl"], check=True, timeout=120)
    return made


def answers(program: Path, machine: Machine) -> list[str]:
    env = {**os.environ, **machine.env}
    done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_it_runs_to_its_end_and_says_the_same_twice(program: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    first = answers(program, machine)
    assert not [line for line in first if "cannot go on" in line or "died of signal" in line]
    assert {line.split(".")[0] for line in first} >= {"none", "alloc", "map", "share", "capture", "ipc", "risky"}
    assert first == answers(program, machine)


@pytest.mark.parametrize("settings", [{"DEVICES": 1, "MEMORY": 1 << 30}, {"DEVICES": 4, "MEMORY": 8 << 30}])
def test_no_answer_depends_on_the_size_or_number_of_devices(
    program: Path, tmp_path: Path, settings: dict[str, int]
) -> None:
    plain = Machine(tmp_path / "plain")
    other = Machine(tmp_path / "other", **settings)
    (tmp_path / "plain").mkdir()
    (tmp_path / "other").mkdir()
    assert answers(program, other) == answers(program, plain)


if RECORDED.exists():

    def test_the_simulator_answers_as_the_recorded_device_did(program: Path, tmp_path: Path) -> None:
        recorded = [line for line in RECORDED.read_text().splitlines() if not line.startswith("#")]
        assert answers(program, Machine(tmp_path)) == recorded
