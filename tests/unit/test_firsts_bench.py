"""The benchmark of first checkpoints and first live images, rehearsed on a simulated device."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import firsts
import host_memory
import images
import kept_copy
import program
import report
import testbed

from gcr.testing.machine import SimulatedMachine

MIB = 1 << 20
PLAIN = ("--plain",)
HOST_WAYS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import host_memory
from host_memory import GIB, MIB, WAYS, Way
ways = [Way(8 * MIB, 2, way.filling, way.mapped_first, way.apart, min(2, way.pinners)) for way in WAYS]
for found in host_memory.measure(64 * MIB, ways, [(8 * MIB, 2, 0.01)], 0.0):
    pass
print(json.dumps(found))
"""
PROBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import firsts
print(json.dumps(firsts.probe_hashes(sys.argv[2], small=64, large=1, size=8 << 20)))
"""


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedMachine]:
    machine, made = SimulatedMachine(tmp_path, "nvidia"), program.Program.__init__
    for name, value in machine.env.items():
        monkeypatch.setenv(name, value)
    flagged = lambda self, command, job: made(self, command, job, flags=machine.world)  # noqa: E731
    monkeypatch.setattr(program.Program, "__init__", flagged)
    monkeypatch.setattr(images, "SETTLE_SECONDS", 0.0)
    yield machine
    machine.close()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firsts, "SOON_SECONDS", 0.5)
    monkeypatch.setattr(firsts, "BEFORE_GIB", 1 / 64)


@pytest.mark.slow
def test_first_checkpoints(simulated: SimulatedMachine) -> None:
    *_, found = firsts.checkpoints(1 / 16, PLAIN)
    for way, held in (("cold", 64 * MIB), ("grown", 80 * MIB)):
        for which in ("first", "second"):
            row = found[way][which]
            assert row["bytes_right"] and row["bytes"] == held
            assert sum(row["steps_s"].values()) == pytest.approx(row["vram_free_s"])
        assert found[way]["second"]["arena"][0][1] >= held, "pinned before the second"
    lines = list(report._just_grown({"first-checkpoint": found}))
    assert len(lines) == 2 and all(line[3] in ("yes", "NO") for line in lines)


@pytest.mark.slow
def test_first_live_images(simulated: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firsts, "LIVE_IMAGES", 2)
    *_, found = firsts.live(1 / 32, PLAIN, lambda name: {"probed": name})
    assert [row["bytes_right"] for row in found["images"]] == [True, True]
    first, second = found["images"]
    assert first["bytes_copied"] >= 32 * MIB > second["bytes_copied"] > 0
    assert first["steps_s"].keys() >= {"prepared", "copied_live", "stop", "quiesced", "running"}
    assert set(found["hashes"]) == set(firsts.PROBES)
    (line,) = report._first_live({"first-live": found})
    assert line[3] in ("yes", "NO")


@pytest.mark.slow
def test_copies_that_jobs_leave_behind(simulated: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of the chunks is copied where the copy is kept, once the device was ready to hash; else all of them."""
    monkeypatch.setattr(testbed, "used_bytes", lambda: 0)
    monkeypatch.setattr(testbed, "bytes_of", lambda pid: 0)
    *_, ways = kept_copy.measure(images.program(1 / 16, "--plain"), settle=2.0)
    assert all(row["bytes_right"] for rows in ways.values() for row in rows)
    assert {row["out_bytes_copied"] for row in ways["fresh"]} == {64 * MIB}
    copied = {row["share"]: row["out_bytes_copied"] for row in ways["kept"]}
    assert copied[0.0] == 0 < copied[0.01] < copied[0.1] < copied[1.0] == 64 * MIB
    assert len(list(report._kept_copy({"kept-copy": ways}))) == 9


@pytest.mark.slow
def test_what_first_hashes_take(simulated: SimulatedMachine) -> None:
    for name in firsts.PROBES:
        found = in_the_world(simulated, PROBE, name)
        assert {"hash0_s", "hash1_s", "move0_s", "hash_after_a_pause_s"} <= found.keys()
        assert ("module_s" in found) == (name != "nothing")


def test_ways_to_fill_and_pin(simulated: SimulatedMachine) -> None:
    found = in_the_world(simulated, HOST_WAYS)
    assert found["again"].keys() == {"first", "at_once", "after_a_pause"}
    assert all(row["bytes_per_s"] > 0 for row in found["again"].values())
    assert len(found["ways"]) == len(host_memory.WAYS) and len(found["arenas"]) == 1
    for row in (*found["ways"], *found["arenas"]):
        assert "refused" in row or min(row["wall_s"], row["pin_s"], row["bytes_per_s"]) > 0
    assert sum("refused" not in row for row in found["ways"]) >= 8


def in_the_world(machine: SimulatedMachine, program: str, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-c", program, str(Path(firsts.__file__).parent), *words]
    done = subprocess.run(command, env=machine.bare_env(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
