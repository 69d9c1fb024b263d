"""The cuts over two nodes of one GPU machine, rehearsed on simulated devices: by programs that do not meet."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from machine import VICTIMS

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "gpu")]

import device_nodes  # noqa: E402
from held import World  # noqa: E402

from gcr.testing.machine import SimulatedMachine  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    (tmp_path / "run").mkdir(mode=0o700)
    machine = SimulatedMachine(tmp_path, "nvidia")
    for name, value in machine.env.items():
        monkeypatch.setenv(name, value)
    yield World(machine.world, machine.bare_env(), lambda _pid: 0)
    machine.close()


def programs(_: Path) -> Sequence[Sequence[str]]:
    return [[sys.executable, str(VICTIMS / "vmm_victim.py"), "--hold", "--pause", "0.02"]] * 2


def test_cuts_of_a_job_over_two_nodes(world: World) -> None:
    found = device_nodes.check(programs, world, cuts=3, steps=300, long_s=0.5)
    assert found["ok"], found
    assert ([cut["suspended_s"] for cut in found["cuts"]], found["exits"]) == ([0.0, 0.0, 0.5], [0] * 4)


def test_a_difference_is_found(world: World) -> None:
    def other_when_bare(meeting: Path) -> Sequence[Sequence[str]]:
        more = ["--seed", "7"] if meeting.name == "second" else []
        return [[*command, *more] for command in programs(meeting)]

    found = device_nodes.check(other_when_bare, world, cuts=1, steps=300, long_s=0.0)
    assert not found["ok"] and all(found["differences"]), found
