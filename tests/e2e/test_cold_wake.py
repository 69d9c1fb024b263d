"""A restore after the worker that held the copy has ended: another one refills from memory that nothing has pinned."""

import re
import time

import pytest
from machine import Machine, kill, until
from worlds import AMD, ASCEND, NVIDIA, here

MIB = 1 << 20
RATE = 60 * MIB  # bytes a second: 96 MiB of a program take over a second
ALLOCATIONS = "alloc 6 16777216"
FOREMOST = [world for world in (NVIDIA, AMD, ASCEND) if world in here()]
WITH_WORKERS = [world for world in FOREMOST if not world.copies]  # elsewhere the program copies by itself


def through_slots(machine: Machine) -> list[int]:
    """Returns the bytes of each refill that went through slots, by the logs."""
    return [int(each) for each in re.findall(r"worker (\d+) bytes through", "".join(machine.logs().values()))]


def workers_end(machine: Machine) -> None:
    until(lambda: not machine.children("gcr.worker") or None, 20, "no job runs on the device")


@pytest.mark.parametrize("machine", FOREMOST, indirect=True, ids=lambda world: world.name)
def test_a_job_wakes_after_its_worker_has_ended_and_can_leave_again(machine: Machine) -> None:
    machine.extra["GCR_WORKER_IDLE_S"] = "0.2"
    job = machine.told("llm", ALLOCATIONS)
    before = job.ask()
    for number in range(1, 3):
        machine.leave()
        workers_end(machine)
        back = machine.come_back()
        assert back.body["cold"] is True
        assert job.ask() == before
        if not machine.where.copies:
            assert through_slots(machine) == [back.body["bytes"]] * number


@pytest.mark.parametrize("machine", WITH_WORKERS, indirect=True, ids=lambda world: world.name)
def test_the_worker_dies_in_the_middle_and_the_job_is_suspended_as_before(machine: Machine) -> None:
    machine.extra |= {"GCR_SIM_BPS": str(RATE), "GCR_WORKER_IDLE_S": "0.2"}
    job = machine.told("llm", ALLOCATIONS)
    before, free = job.ask(), machine.used()
    machine.leave()
    workers_end(machine)
    running = machine.command("restore")
    until(lambda: machine.used() >= 96 * MIB or None, 20, "the worker has made the memory")
    time.sleep(0.4)
    kill(*machine.children("gcr.worker"))
    assert running.result(timeout=60).code != 0
    assert machine.settled() == machine.where.suspended
    assert through_slots(machine) == [], "its refill was under way"
    assert machine.used() < free
    back = machine.come_back()
    assert back.body["cold"] is True
    assert job.ask() == before
    assert through_slots(machine) == [back.body["bytes"]]
    machine.comes_back(job, before)


@pytest.mark.parametrize("machine", WITH_WORKERS[:1], indirect=True, ids=lambda world: world.name)
def test_a_refill_that_is_too_slow_is_taken_back_and_the_next_has_every_byte(machine: Machine) -> None:
    settings = machine.folder / "config.toml"
    settings.write_text("")
    machine.extra |= {"GCR_SIM_BPS": str(RATE), "GCR_WORKER_IDLE_S": "0.2", "GCR_CONFIG": str(settings)}
    job = machine.told("llm", ALLOCATIONS)
    before = job.ask()
    machine.leave()
    workers_end(machine)
    settings.write_text("drain_s = 0.8\n")
    kill(*machine.children("gcr.daemon"))
    late = machine.ask("restore", "llm")
    assert (late.code != 0, late.body["error"]["code"]) == (True, "deadline_passed"), late.body
    assert machine.settled() == machine.where.suspended
    settings.write_text("")
    kill(*machine.children("gcr.daemon"))
    machine.come_back()
    assert job.ask() == before
