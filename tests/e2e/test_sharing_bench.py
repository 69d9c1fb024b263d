"""The benchmarks of ranks that share device memory, rehearsed on two simulated devices."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine import VICTIMS
from p2p import KERNELS, PROGRAM

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "gpu")]

import device_ranks  # noqa: E402
import report_sharing  # noqa: E402
import sharing_jobs  # noqa: E402
from held import World  # noqa: E402

from gcr.testing.machine import SimulatedMachine  # noqa: E402

RANKS = [sys.executable, PROGRAM, "--hold", "--kernels", KERNELS, "--ranks", "2"]
pytestmark = pytest.mark.slow


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedMachine]:
    (tmp_path / "run").mkdir(mode=0o700)
    machine = SimulatedMachine(tmp_path, "nvidia", devices=2)
    for name, value in machine.env.items():
        monkeypatch.setenv(name, value)
    yield machine
    machine.close()


@pytest.fixture
def world(simulated: SimulatedMachine) -> World:
    return World(simulated.world, simulated.bare_env(), lambda _pid: 0)


@pytest.fixture
def torch(simulated: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that stands for PyTorch, for programs under gcr and bare."""
    for name, value in simulated.bare_env().items():
        monkeypatch.setenv(name, value)
    path = (Path(__file__).parent / "fake_torch", VICTIMS, os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, path)))
    monkeypatch.setattr(sharing_jobs, "SETTLE_SECONDS", 0.0)


@pytest.mark.usefixtures("torch")
def test_rates(simulated: SimulatedMachine) -> None:
    found = sharing_jobs.rates(simulated.world, pairs=2)
    counts = {"first_start": 1, "start": 3, "more": 8, "large": 480, "alone": 6400}
    for samples in (pair[which] for pair in found["samples"] for which in ("bare", "other")):
        assert {name: len(samples[name]) for name in counts} == counts
    assert len(found["goals"]) == 7
    assert len([*report_sharing.lines({"sharing-rates": found})]) == 7


@pytest.mark.usefixtures("torch")
def test_swaps_of_busy_ranks(simulated: SimulatedMachine) -> None:
    found = sharing_jobs.filled(simulated.world, gib=0, cycles=2)
    assert "failed" not in found, found
    assert all(row["bytes_right"] and row["processes"] == 2 for row in found["rows"])
    assert len(found["goals"]) == 4


@pytest.mark.usefixtures("torch")
def test_what_was_found_before_an_error_is_kept(simulated: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = sharing_jobs.gcr, []

    def ends_at_the_third(*words: str) -> dict[str, Any]:
        calls.append(words)
        if len(calls) == 3:
            raise SystemExit("gcr ended")
        return real(*words)

    monkeypatch.setattr(sharing_jobs, "gcr", ends_at_the_third)
    found = sharing_jobs.filled(simulated.world, gib=0, cycles=2)
    assert (found["ok"], len(found["rows"]), found["failed"]) == (False, 1, "gcr ended")


def test_many_shared_allocations(simulated: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing_jobs, "SHARED", (0, 5, 20))
    monkeypatch.setattr(sharing_jobs, "ALL_HANDLES", 20)
    monkeypatch.setattr(sharing_jobs, "SETTLE_SECONDS", 0.0)
    found = sharing_jobs.handles(simulated.world, cycles=2)
    assert [(row["shared"], row["bytes_right"]) for row in found["rows"]] == [(n, True) for n in (0, 5, 20)] * 2
    assert not found.get("failed")
    assert {row["handles"] for row in found["rows"]} == {20}
    assert len(found["goals"]) == 5


def test_standstills(world: World) -> None:
    found = device_ranks.standstills(RANKS, world, samples=4)
    assert found["same_output"] and not found["unexpected"], found
    assert len(found["standstills"]) == 4 and found["median_ms"] > 0


def test_a_long_suspension(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in device_ranks.HEARTBEAT:
        monkeypatch.setenv(name, "")
    assert device_ranks.heartbeat(RANKS, world, seconds=1)["ok"]


def test_exchanges_and_failures_at_each_step(world: World) -> None:
    found = device_ranks.moves(RANKS, world, rounds=1)
    assert found["ok"], found
    assert len(found["cases"]) == 2 + 8 + 4
