"""The benchmark of resident memory, rehearsed on a simulated device."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from machine import Machine

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import images
import report
import resident

MIB = 1 << 20


def test_ways_back(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in machine.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(resident.testbed, "used_bytes", machine.used)
    monkeypatch.setattr(resident.testbed, "bytes_of", lambda _pid: 0)
    command = images.program(16 * MIB / images.GIB, "--plain")
    (ways,) = resident.measure(command, cycles=1, settle=1.0, run_flags=machine.world)
    (kept,), (plain,), (freed,) = ways["kept"], ways["plain"], ways["freed"]
    assert all(row["bytes_right"] for row in (kept, plain, freed))
    assert kept["out_resident_bytes"] == kept["in_resident_bytes"] == kept["out_bytes"] == 16 * MIB
    gone = min(plain["device_freed"], freed["device_freed"])  # with the context of the job
    assert gone >= 16 * MIB and gone > kept["device_freed"]
    assert plain["out_resident_bytes"] == plain["in_resident_bytes"] == 0
    assert _judged(ways) == ["yes", "yes"]
    assert _judged({**ways, "freed": [{**freed, "device_freed": 0}]}) == ["NO", "yes"]


def _judged(ways: Mapping[str, Any]) -> list[str]:
    """Returns what the report says of data left on the device, and of wrong bytes."""
    return [met for *_, met in report._resident({"resident-8": ways})][-2:]
