"""A ring of processes that hold memory of each other (tests/victims/ring_victim.py)."""

import sys

import pytest
from machine import VICTIMS, Machine, Victim
from two_devices import COUNTED

RING = str(VICTIMS / "ring_victim.py")
OWN = 2 << 20  # bytes that each has for itself alone


def ring(machine: Machine, count: int = 3, *how: str, name: str = "llm") -> Victim:
    job = machine.run(name, sys.executable, RING, str(count), "--vendor", machine.vendor, *how)
    machine.targets(name, count)
    assert job.ask("round") == "2"
    return job


BOTH = pytest.mark.parametrize("calls", [(), ("--legacy",)], ids=["descriptors", "legacy"])


def uuids(machine: Machine) -> list[str]:
    """Returns the three devices, the one where the ring is first."""
    found = machine.bare(sys.executable, "-c", COUNTED.format(pid=0)).split()[::3]
    assert len(found) == 3
    return found
