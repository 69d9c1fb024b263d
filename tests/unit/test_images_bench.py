"""The benchmark of images, rehearsed on a simulated device: that it runs, and that its rows say what happened."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import image_ways
import images
import program
import standstill

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


@pytest.mark.slow
def test_full_images(simulated: SimulatedMachine) -> None:
    found = images.full(images.program(1 / 64, "--plain"), cycles=2, probe=32 * MIB)
    assert all(row["bytes_right"] and row["bytes_written"] == row["bytes_total"] > 15 * MIB for row in found["cycles"])
    assert found["unchanged_written_share"] == 0
    assert min(found["disk"].values()) > 0


@pytest.mark.slow
def test_streamed_images(simulated: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCR_SLOT_BYTES", str(2 * MIB))
    monkeypatch.setenv("GCR_SEGMENT_BYTES", str(2 * MIB))
    found = images.streamed(images.program(1 / 16, "--plain"), probe=32 * MIB, arena=17 * MIB)
    assert [row["streamed"] and row["bytes_right"] for row in found["cycles"]] == [True, True]
    assert all(row["bytes_written"] > 60 * MIB and row["vram_after_bytes"] == 0 for row in found["cycles"])


def test_standstill_by_gcr(simulated: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standstill, "UNDISTURBED_SECONDS", 0.5)
    rows = standstill.by_gcr(standstill.program(1 / 32, 0.05, "--plain"), cycles=2)
    for row in rows:
        assert row["bytes_total"] == 32 * MIB
        assert row["steps"] * row["typical_s"] > 0.3 * row["durable_s"], "it was watched all the while"
        assert 0 < 0.8 * row["stop_s"] <= row["longest_s"] < row["durable_s"]
        assert row["stands_s"] < row["longest_s"]


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_standstill_by_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the processor: nothing of it is a figure."""
    monkeypatch.setattr(standstill, "UNDISTURBED_SECONDS", 0.5)
    monkeypatch.setenv("GCR_BENCHMARK_STORE", str(tmp_path))
    found = standstill.by_torch(standstill.program(1 / 8, 0.5, "--device", "cpu"), cycles=2)
    for save, beside in zip(found["torch_save"], found["async_save"], strict=True):
        assert 0 < save["call_s"] == save["stands_s"]
        assert min(beside["call_s"], beside["done_s"]) > 0 and beside["steps"] > 0
        assert beside["stands_s"] < beside["call_s"] + beside["longest_s"]
    assert not [*tmp_path.iterdir()]


def test_the_longest_of_each_way_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"torch_save": [{"stands_s": 8.0}, {"stands_s": 10.0}], "async_save": [{"stands_s": 4.0}]}
    monkeypatch.setattr(standstill, "by_torch", lambda _command: rows)
    monkeypatch.setattr(standstill, "by_gcr", lambda _command: [{"stands_s": 0.5}, {"stands_s": 0.1}])
    for found in standstill.measure(1).values():
        assert (found["image_to_torch_save"], found["image_to_async_save"]) == (0.05, 0.125)


def test_live_images(simulated: SimulatedMachine) -> None:
    found = images.live(images.program(1 / 32, "--plain"), cycles=2)
    for row in found["cycles"]:
        assert row["bytes_right"] and row["stop_s"] > 0
        assert 0 < row["written_share"] == row["changed_share"] == row["copied_share"] < 0.05


def test_ways_to_a_disk_and_sizes_of_chunks(tmp_path: Path) -> None:
    found = image_ways.measure(tmp_path, 16 * MIB + 4096, 1)
    ways = found["ways_bytes_per_s"]
    rings = {name for name in ways if "io_uring" in name}
    assert len(ways) == 20 and len(rings) == 6
    if find_spec("liburing") is None:
        assert {ways.pop(name) for name in rings} == {"No module named 'liburing'"}
    assert all(isinstance(rate, float) and rate > 0 for rate in ways.values()), ways
    small, large = found["chunk_sizes"][0], found["chunk_sizes"][-1]
    assert small["beside_bytes_per_gib"] > large["beside_bytes_per_gib"] > 0
    assert pytest.approx(small["written_for_a_hundredth"]) == 0.01 and large["written_for_a_hundredth"] > 0.4
    assert list(tmp_path.iterdir()) == []
