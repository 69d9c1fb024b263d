"""The benchmark of images, rehearsed on a simulated device: that it runs, and that its rows say what happened."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import images
import program

from gcr.testing.machine import SimulatedMachine

MIB = 1 << 20


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedMachine]:
    machine = SimulatedMachine(tmp_path, "nvidia")
    for name, value in machine.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(program.Program, "__init__", with_flags(program.Program.__init__, machine))
    monkeypatch.setattr(images, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(images, "drop_caches", lambda: None)
    yield machine
    machine.close()


def with_flags(made, machine):  # type: ignore[no-untyped-def]
    return lambda self, command, job, **more: made(self, command, job, flags=machine.world, **more)


def test_full_images(simulated: SimulatedMachine) -> None:
    found = images.full(images.program(1 / 64, "--plain"), cycles=2, probe=32 * MIB)
    assert all(row["bytes_right"] and row["bytes_written"] == row["bytes_total"] > 15 * MIB for row in found["cycles"])
    assert found["unchanged_written_share"] == 0
    assert min(found["disk"].values()) > 0


def test_live_images(simulated: SimulatedMachine) -> None:
    found = images.live(images.program(1 / 32, "--plain"), cycles=2)
    for row in found["cycles"]:
        assert row["bytes_right"] and row["stop_s"] > 0
        assert 0 < row["written_share"] == row["changed_share"] < 0.05
