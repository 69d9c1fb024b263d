"""The benchmark of whole processes, rehearsed on a simulated device; of CRIU alone, on a program without a device."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from two_devices import COUNTED

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import images
import report_whole
import whole

from gcr.native import sim_dir
from gcr.testing.machine import SimulatedMachine

pytestmark = pytest.mark.on_disk

MIB = 1 << 20
ANSWERS = "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)"


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedMachine]:
    machine = SimulatedMachine(tmp_path, "nvidia", devices=2)
    for name, value in machine.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GCR_BENCHMARK_STORE", str(tmp_path))
    monkeypatch.setattr(images, "drop_caches", lambda: None)
    yield machine
    machine.close()


@pytest.mark.slow
@pytest.mark.usefixtures("criu")
def test_generations(simulated: SimulatedMachine) -> None:
    command = images.program(16 * MIB / images.GIB, "--plain")
    *_, found = whole.measure(command, simulated.world, used=lambda: 0)
    generations = found["generations"]
    assert [(each["way"], each["right"]) for each in generations] == [(way, True) for way in whole.WAYS]
    assert all(each["gone_s"] > 0 and each["answered_s"] > each["back"]["total_s"] for each in generations)
    assert generations[0]["out"]["bytes_written"] > generations[1]["out"]["bytes_written"] > 0
    assert found["memory"]["Rss"] > MIB
    took = {"out_s": 9.0, "synced_s": 10.0, "answered_s": 8.0}
    theirs = {name: dict.fromkeys(whole.WAYS[1:], took) for name in ("context", "8 GiB")}
    lines = list(report_whole.lines({"whole-8": found, "whole-context": found, "criu-8": theirs}))
    beside = [line for line in lines if line[3]]
    assert len(lines) == 20 and len(beside) == 13
    assert [line[3] for line in beside] == ["NO", *["yes"] * 12]  # of so small a program more than 5 % changes


@pytest.mark.slow
@pytest.mark.usefixtures("criu")
def test_generations_on_one_device_after_the_other(simulated: SimulatedMachine) -> None:
    first, second = counted(simulated)
    command = images.program(16 * MIB / images.GIB, "--plain")
    found = whole.onto_others(command, (first, second), lambda device: counted(simulated)[device], simulated.world)
    assert [(each["onto"], each["right"]) for each in found["generations"]] == [
        (second, True),
        (first, True),
        (second, True),
    ]
    for each in found["generations"]:
        assert not any(each["left_bytes"].values())
        assert [device for device, count in each["came_bytes"].items() if count >= 16 * MIB] == [each["onto"]]


def counted(machine: SimulatedMachine) -> dict[str, int]:
    """Returns the bytes in use on each device, by its own count."""
    words = [sys.executable, "-c", COUNTED.format(pid=0)]
    lines = subprocess.run(words, env=machine.bare_env(), capture_output=True, text=True, check=True).stdout.split()
    return {uuid: int(used) for uuid, used in zip(lines[::3], lines[1::3], strict=True)}


@pytest.mark.slow
@pytest.mark.usefixtures("criu")
def test_criu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin of ours stands for CRIU's own: there is no device here."""
    monkeypatch.setenv("GCR_BENCHMARK_STORE", str(tmp_path))
    monkeypatch.setenv(whole.ANCHOR, str(tmp_path))
    monkeypatch.setattr(images, "drop_caches", lambda: None)
    programs = {"one": [sys.executable, "-c", ANSWERS]}
    with pytest.raises(SystemExit, match=r"no folder with cuda_plugin\.so"):
        next(whole.by_criu(programs))
    shutil.copy(sim_dir("amd") / "criu" / "amdgpu_plugin.so", tmp_path / "cuda_plugin.so")
    *_, known = whole.by_criu(programs)
    for found in (known["one"]["page cache"], known["one"]["cold"]):
        assert found["right"] and found["bytes"] > MIB
        assert found["answered_s"] >= found["back_s"] > 0 < found["out_s"] <= found["synced_s"]
