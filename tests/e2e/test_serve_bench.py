"""The benchmarks of `gcr serve`, rehearsed on a simulated device."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import serve_image  # noqa: E402
import serve_load  # noqa: E402
import serve_swaps  # noqa: E402
from serve_swaps import Server  # noqa: E402

from gcr.testing.machine import SimulatedMachine  # noqa: E402

SMALL = Server(8 / 1024, ("--plain",))
pytestmark = pytest.mark.slow


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedMachine]:
    (tmp_path / "run").mkdir(mode=0o700)
    machine = SimulatedMachine(tmp_path, "nvidia")
    for name, value in {**machine.bare_env(), **machine.env}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(serve_swaps, "SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(serve_swaps.devices, "bytes_of", lambda _pid: {})
    yield machine
    machine.close()


@pytest.mark.parametrize("parked", list(serve_swaps.Parked))
def test_models_take_turns(simulated: SimulatedMachine, parked: serve_swaps.Parked) -> None:
    *_, found = serve_swaps.by_gcr(SMALL, parked, turns=4, flags=simulated.world)
    assert [turn["model"] for turn in found["turns"]] == ["one", "two"] * 2
    assert all(turn["right"] and 0 < turn["first_s"] <= turn["whole_s"] for turn in found["turns"])
    judged = serve_swaps.judged(found)
    assert judged["ok"], judged["goals"]
    assert len(judged["goals"]) == (4 if parked is serve_swaps.Parked.AWAY else 2)
    bad = {**found["turns"][0], "added_s": 9.0, "right": False, "left_bytes": 1}
    assert not any(goal["met"] for goal in serve_swaps.judged({**found, "turns": [bad] * 4})["goals"])


def test_servers_end_and_start(simulated: SimulatedMachine) -> None:
    *_, found = serve_swaps.by_reload(SMALL, turns=2)
    assert [turn["right"] for turn in found["turns"]] == [True, True]
    assert all(turn["added_s"] > 0.05 for turn in found["turns"])  # an interpreter starts


def test_many_clients(simulated: SimulatedMachine) -> None:
    run = serve_load.load(SMALL, swaps=6, seconds=60, clients=8, flags=simulated.world)
    found = serve_load.judged_load([run], swaps=6)
    assert found["ok"], found
    assert run["answers"] > 12 and {"serve", "daemon"} <= set(run["grown"])
    lost = {**run, "wrong_count": 1, "swaps": 5, "grown": {"daemon": [0, 1000]}}
    assert not any(goal["met"] for goal in serve_load.judged_load([lost], swaps=6)["goals"])


def test_a_server_that_is_killed_comes_back_from_its_image(criu: None, simulated: SimulatedMachine) -> None:
    *_, found = serve_image.killed(SMALL, flags=simulated.world, kills=2)
    assert serve_image.judged(found)["ok"], found
    by_command = {**found, "kills": [{"back_s": 1.0, "right": False, "same_pid": False}]}
    assert not any(goal["met"] for goal in serve_image.judged(by_command)["goals"])
