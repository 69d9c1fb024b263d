"""The conformance program on the simulator, compared line by line with what a real device answered, once recorded."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gcr.native import NativeMissing, shim_path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "native" / "sim"), str(TESTS / "contract" / "conformance")]

from answers import SOURCES, as_listed, listed, recorded  # noqa: E402
from simulated import ROOT, Machine  # noqa: E402

LIMITATIONS = ROOT / "docs" / "limitations.md"
HEADING = "## Answers that differ under gcr"


def table() -> str:
    rows = [f"| `{d.name}` | {d.bare} | {d.shimmed} | {d.why} |" for d in listed()]
    return "\n".join(["| answer | bare | under gcr | because |", "|---|---|---|---|", *rows])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    assert compiler, "a C compiler is needed"
    made = tmp_path_factory.mktemp("conformance") / "cuda_conformance"
    command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Werror", "-o", str(made)]
    subprocess.run([*command, *map(str, sorted(SOURCES.glob("*.c"))), "-ldl"], check=True, timeout=120)
    return made


def answers(program: Path, machine: Machine, **env: str) -> list[str]:
    full = {**os.environ, **machine.env, **env}
    done = subprocess.run([program], env=full, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def broken(lines: list[str]) -> list[str]:
    return [line for line in lines if "cannot go on" in line or "died of signal" in line or ": exit " in line]


def test_it_runs_to_its_end_and_says_the_same_twice(program: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    first = answers(program, machine)
    assert not broken(first)
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


def test_the_simulator_answers_as_the_recorded_device_did(program: Path, tmp_path: Path) -> None:
    assert not broken(recorded())
    assert answers(program, Machine(tmp_path)) == recorded()


def test_under_the_shim_only_the_listed_answers_differ(program: Path, tmp_path: Path) -> None:
    try:
        shim = shim_path()
    except NativeMissing as missing:
        pytest.skip(str(missing))
    bare = answers(program, Machine(tmp_path))
    shimmed = answers(program, Machine(tmp_path), LD_PRELOAD=str(shim))
    assert {f"{each.name}: {each.bare}" for each in listed()} <= set(bare)
    assert shimmed == as_listed(bare)


def test_the_manual_names_every_answer_that_differs() -> None:
    section = LIMITATIONS.read_text().split(HEADING + "\n", 1)[1].split("\n## ", 1)[0]
    assert table() in section, f"the table should read:\n{table()}"
