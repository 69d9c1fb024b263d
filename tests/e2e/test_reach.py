"""Restores onto devices that do not reach each other's memory: refused before anything is touched."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import Machine
from p2p import NAME, Group, error_of, prepare
from rings import ring, uuids
from two_devices import Job, three_devices
from worlds import slowly

APART = {"GCR_SIM_NO_P2P": "0-2"}


@pytest.fixture
def three(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    made = three_devices(tmp_path, **getattr(request, "param", APART))
    yield made
    made.close()


def is_refused(machine: Machine, *moves: str) -> str:
    """Returns the error's message."""
    options = [word for move in moves for word in ("--device", move)]
    error = error_of(machine.gcr("restore", NAME, *options))
    assert (error["code"], error["exit"], error["state"]) == ("wrong_device", 3, "suspended"), error
    assert "docs/limitations.md#other-devices" in error["hint"]
    assert machine.settled() == "suspended"
    return str(error["message"])


@pytest.mark.parametrize("visible", ["0,1,2", "0,1"])
def test_a_process_with_peer_access_is_not_parted(three: Machine, visible: str) -> None:
    job = Job.start(three, visible=visible)
    first, second = job.devices
    (third,) = set(job.counted()) - {first, second}
    job.leave()
    for _ in range(2):
        message = is_refused(three, f"{second}={third}")
        assert first in message and third in message and f"process {job.pid} " in message
    assert {mine for _, mine in job.counted().values()} == {0}
    job.come_back(third, second)
    job.leave()
    is_refused(three, f"{second}={first}")
    job.come_back(first, second)


@pytest.mark.parametrize("way", ["asked", "legacy", slowly("cached"), slowly("small")])
def test_ranks_that_share_memory_are_not_parted(machine: Machine, way: str) -> None:
    prepare(machine, 3, **APART)
    group = Group.start(machine, "--meet", way, ranks=2)
    pids = [group.pid(rank) for rank in (0, 1)]
    group.leave()
    message = is_refused(machine, "1=2")
    first, _, third = uuids(machine)
    assert first in message and third in message
    assert all(f"process {pid}" in message for pid in pids), (message, pids)
    group.come_back("--device", "0=2")
    group.works()
    group.leave()
    group.come_back()
    group.works()


@pytest.mark.parametrize("three", [{"GCR_SIM_NO_P2P": "0-1,0-2,1-2"}], indirect=True)
def test_memory_that_one_device_alone_uses_goes_anywhere(three: Machine) -> None:
    job = ring(three)
    old, new, _ = uuids(three)
    three.leave()
    assert three.ask("restore", NAME, devices={old: new}).code == 0
    assert job.ask("round") == "3"
