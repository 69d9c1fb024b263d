"""The conformance program on the simulator, compared line by line with what a real device answered, once recorded."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gcr.native import NativeMissing, shim_path

sys.path.insert(0, str(Path(__file__).parents[1] / "native" / "sim"))

from simulated import ROOT, Machine

SOURCES = ROOT / "tests" / "contract" / "conformance"
LIMITATIONS = ROOT / "docs" / "limitations.md"
HEADING = "## Answers that differ under gcr"


@dataclass(frozen=True, slots=True)
class Difference:
    name: str
    bare: str
    shimmed: str
    why: str = ""


def recorded() -> list[str]:
    lines = (SOURCES / "recorded_h200.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def listed() -> Iterator[Difference]:
    why = ""
    for line in (SOURCES / "differs_under_shim.txt").read_text().splitlines():
        if line.startswith("#!"):
            why = line[2:].strip()
        elif line and not line.startswith("#"):
            name, answers = line.split(": ", 1)
            bare, shimmed = answers.split(" -> ")
            yield Difference(name, bare, shimmed, why)


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
    assert [line.split(": ")[0] for line in shimmed] == [line.split(": ")[0] for line in bare]
    pairs = [(one.split(": ", 1), other.split(": ", 1)[1]) for one, other in zip(bare, shimmed, strict=True)]
    found = {Difference(name, before, after) for (name, before), after in pairs if before != after}
    assert found == {Difference(d.name, d.bare, d.shimmed) for d in listed()}


def test_the_manual_names_every_answer_that_differs() -> None:
    section = LIMITATIONS.read_text().split(HEADING + "\n", 1)[1].split("\n## ", 1)[0]
    assert table() in section, f"the table should read:\n{table()}"
