"""Processes that share memory end in a checkpoint in place on AMD, and share it again after the restore."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from filed import Filed, back, stop
from machine import Machine, alive
from parking import WORKER, park, places
from worlds import AMD

pytestmark = [
    pytest.mark.usefixtures("criu"),
    pytest.mark.parametrize("machine", [AMD], indirect=True, ids=lambda world: world.name),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="/dev/fuse is not there to stand for /dev/kfd"),
]
BOTH = pytest.mark.parametrize("calls", [(), ("--legacy",)], ids=["descriptors", "legacy"])


@pytest.fixture(autouse=True)
def nothing_left(machine: Machine) -> Iterator[None]:
    yield
    for place in places(machine):
        shutil.rmtree(place)


def ring(machine: Machine, calls: Sequence[str]) -> Filed:
    job = Filed(machine, program=("ring_victim.py", "3", "--vendor", "amd", *calls))
    assert job.ask("round") == "2"
    return job


@BOTH
def test_they_leave_in_place_and_share_again_and_more(machine: Machine, calls: Sequence[str]) -> None:
    job = ring(machine, calls)
    pids = job.ask("pids")
    for turn in range(3):
        park(machine)
        assert not any(alive(int(pid)) for pid in pids.split())
        assert machine.used() == WORKER
        machine.come_back()
        assert (job.ask("pids"), job.ask()) == (pids, str(turn * 2 + 2))
        assert job.ask("round") == str(turn * 2 + 3)
        assert job.ask(f"renew {turn}") == str(turn * 2 + 4)
    job.close()


@BOTH
def test_they_come_back_from_an_image_and_share_again_and_more(machine: Machine, calls: Sequence[str]) -> None:
    job = ring(machine, calls)
    for turn in range(2):
        stop(machine, f"night{turn}")
        back(machine, f"night{turn}")
        assert job.ask("round") == str(turn * 2 + 3)
        assert job.ask(f"renew {turn}") == str(turn * 2 + 4)
    job.close()
