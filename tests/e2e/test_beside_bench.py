"""The benchmark of the driver's checkpoint beside other work, rehearsed on a simulated device."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks")]

import beside  # noqa: E402

from gcr.testing.machine import SimulatedMachine  # noqa: E402

MIB = 1 << 20


@pytest.fixture(autouse=True)
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedMachine]:
    (tmp_path / "run").mkdir(mode=0o700)
    machine = SimulatedMachine(tmp_path, "nvidia", devices=2)
    for name, value in {**machine.bare_env(), **machine.env}.items():
        monkeypatch.setenv(name, value)
    yield machine
    machine.close()


def test_beside_copies() -> None:
    *_, found = beside.copies(cycles=2, size=8 * MIB, chunks={"1 MiB, two": (MIB, 2)})
    assert set(found) == {"none", "1 MiB, two"}
    assert len(found["1 MiB, two"]["rows"]) == 2
    rates = [value for name, value in found["1 MiB, two"].items() if name.endswith("bytes_per_s")]
    assert len(rates) == 4 and all(rates)


@pytest.mark.slow  # starts some twenty interpreters
def test_several_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "MOST", 3)
    monkeypatch.setattr(beside.devices, "handles", lambda: [0, 1])
    *_, found = beside.at_once(cycles=2)
    ways = ["1 on one device", "2 on one device", "3 on one device", "2, one a device", "one leaves, one comes back"]
    assert list(found) == ways
    assert all(each["out_s"] > 0 and each["in_s"] > 0 for each in found.values())
