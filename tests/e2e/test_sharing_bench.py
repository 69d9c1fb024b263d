"""The benchmarks of several devices, rehearsed on simulated ones."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine import VICTIMS
from p2p import KERNELS, PROGRAM

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "gpu")]

import all_devices  # noqa: E402
import device_ranks  # noqa: E402
import images  # noqa: E402
import report_judged  # noqa: E402
import sharing_jobs  # noqa: E402
from held import World  # noqa: E402
from link import DOWN, UP  # noqa: E402

from gcr.testing.machine import SimulatedMachine  # noqa: E402

RANKS = [sys.executable, PROGRAM, "--hold", "--kernels", KERNELS, "--ranks", "2"]
MIB, GRANULE = 1 << 20, 2 << 20  # a device gives whole granules
LINKS = {f"{way}_bytes_per_s": 1e9 for way in (DOWN, UP)}
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
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedMachine]:
    (tmp_path / "run").mkdir(mode=0o700)
    machine = SimulatedMachine(tmp_path, "nvidia", devices=3)
    for name, value in {**machine.bare_env(), **machine.env}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(all_devices, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(all_devices.devices, "bytes_of", lambda _pid: {})
    monkeypatch.setattr(all_devices.devices, "present", list)
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
    assert len([*report_judged.lines({"sharing-rates": found})]) == 7


@pytest.mark.usefixtures("torch")
def test_all_reduces_that_are_waited_for(simulated: SimulatedMachine) -> None:
    found = sharing_jobs.alone(simulated.world, pairs=2, turns=2)
    assert [[len(each[which]) for which in sharing_jobs.OF_ALONE] for each in found["samples"]] == [[2, 2, 2]] * 2
    assert found["share"] > 0 and found["control"]["share"] > 0
    assert len([*report_judged.lines({"sharing-alone": found})]) == 1


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


def test_moves_over_three_devices(three: SimulatedMachine) -> None:
    found = device_ranks.moves([*RANKS[:-1], "3"], World(three.world, three.bare_env(), lambda _pid: 0), rounds=1)
    assert found["ok"], found
    assert len(found["cases"]) == 3 + 8 + 4


@pytest.mark.usefixtures("torch")
def test_goals_of_busy_ranks_on_many_devices(simulated: SimulatedMachine) -> None:
    found = sharing_jobs.filled(simulated.world, gib=0, cycles=2, bound=LINKS)
    assert all(row["bytes_right"] and row["processes"] == 2 for row in found["rows"])
    assert len(found["goals"]) == 6 and found["links"] == LINKS


def test_links_at_once(three: SimulatedMachine) -> None:
    words = [sys.executable, str(ROOT / "benchmarks" / "link.py"), str(1 << 20), "3"]
    done = subprocess.run(words, env=three.bare_env(), capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert (found["devices"], len(found["alone"])) == (3, 3)
    assert all(each[f"{way}_bytes_per_s"] > 0 for each in (found, *found["alone"]) for way in (DOWN, UP))


def test_a_job_on_each_device(three: SimulatedMachine) -> None:
    command = images.program(MIB / images.GIB, "--plain")
    found = all_devices.judged(all_devices.jobs_of([command] * 3, 2, three.world), LINKS)
    assert [(row["way"], len(row["out"]), row["bytes_right"]) for row in found["rows"]] == [
        ("alone", 1, True), ("together", 3, True),
    ] * 2  # fmt: skip
    assert all(job["bytes"] == GRANULE for row in found["rows"] for way in ("out", "in") for job in row[way])
    assert len([*report_judged.lines({"all-jobs": found})]) == 7


def test_one_process_on_all_devices(three: SimulatedMachine) -> None:
    both = [sys.executable, str(VICTIMS / "peers_victim.py"), "--interactive", "--mib", "2"]
    command = images.program(MIB / images.GIB, "--plain")
    found = all_devices.judged(all_devices.process_of([command, both], 2, three.world), LINKS)
    assert [(row["way"], row["bytes_right"]) for row in found["rows"]] == [("alone", True), ("together", True)] * 2
    assert found["rows"][1]["out"][0]["bytes"] > MIB


def test_what_goals_of_all_devices_say_no_to(three: SimulatedMachine) -> None:
    job = dict.fromkeys((*all_devices.CHECKPOINT, *all_devices.RESTORE), 1.0)
    row = {"out": [job], "in": [job], "out_s": 1.0, "in_s": 1.0, "left_bytes": [0], "bytes_right": True}
    rows = [{**row, "way": way, "cycle": cycle} for cycle in range(2) for way in ("alone", "together")]
    slow = {**job, "drain_s": 4.0, "refill_s": 4.0, "control_s": 2.0, "stop_s": 2.0}
    late = {**rows[-1], "out": [job, slow], "in": [slow, job], "left_bytes": [0, 1], "bytes_right": False}
    bound = {f"{way}_bytes_per_s": 1.0 for way in (DOWN, UP)}
    assert all(goal["met"] for goal in all_devices.judged(iter(rows), bound)["goals"])
    assert not any(goal["met"] for goal in all_devices.judged(iter([*rows[:-1], late]), bound)["goals"])
