"""Resident memory on two devices: each device's part stays or goes by itself, and a move takes none of it along."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import Machine, until
from two_devices import Job, three_devices


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = three_devices(tmp_path)
    yield made
    made.close()


def suspend(job: Job) -> dict[str, int]:
    """Suspends the job, whose memory stays. Returns its bytes by device."""
    gone = job.machine.ask("checkpoint", "llm", resident=True)
    assert (gone.code, gone.body.get("state")) == (0, "suspended"), gone.body
    there = resident(job)
    assert sum(there.values()) == gone.body["resident_bytes"] == gone.body["bytes"]
    assert all(there.values()) and [*there] == [*job.devices]
    return there


def resident(job: Job) -> dict[str, int]:
    found = job.machine.job("llm")
    assert found
    return {row["device"]: row["resident_bytes"] for row in found["processes"]}


def test_what_is_left_is_mapped_and_the_rest_is_refilled(machine: Machine) -> None:
    job = Job.start(machine)
    there = suspend(job)
    first, second = job.devices
    taker = machine.stranger()  # on the first device
    assert int(taker.ask("everything")) > 0
    until(lambda: resident(job)[first] == 0 or None, 20, "the first device is free")
    taker.supervisor.kill()
    taker.supervisor.wait(10)
    assert resident(job) == {**there, first: 0}
    back = job.come_back()
    assert (back.body["resident_bytes"], back.body["bytes"]) == (there[second], sum(there.values()))
    assert back.body["refill_bytes_per_s"] is not None


def test_a_job_that_comes_back_elsewhere_leaves_nothing_behind(machine: Machine) -> None:
    job = Job.start(machine)
    for _ in range(2):
        suspend(job)
        first, second = job.devices
        machine.inject("restore.mapped fail")
        assert machine.ask("restore", "llm", devices={first: second, second: first}).code == 4
        back = job.come_back(second, first)
        assert back.body["resident_bytes"] == 0
    there = suspend(job)
    assert job.come_back().body["resident_bytes"] == sum(there.values())
    job.leave()
    assert {mine for _, mine in job.counted().values()} == {0}
