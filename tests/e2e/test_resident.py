"""A suspended job whose memory is still on its device: it comes back by mapping, and another program gets the room.

Every byte is in host memory as well, so any death costs the memory on the device and never the job.
"""

import os
import signal

import pytest
from machine import Machine, kill, until
from test_deaths import OURS, Who, gcrd, strike, supervisor, worker
from worlds import AMD, ASCEND, at

MIB = 1 << 20
CONTEXT = 16 * MIB  # what a context of the simulated device costs


def suspend(machine: Machine, name: str = "llm") -> int:
    """Suspends a job, whose memory stays. Returns its bytes."""
    gone = machine.ask("checkpoint", name, resident=True)
    assert (gone.code, gone.body.get("state")) == (0, "suspended"), gone.body
    size = int(gone.body["bytes"])
    assert gone.body["resident_bytes"] == gone.body["vram_after_bytes"] == size > 0, gone.body
    assert gone.body["vram_free_s"] is None
    return size


def resident(machine: Machine, name: str = "llm") -> int:
    job = machine.job(name)
    assert job
    return sum(row["resident_bytes"] for row in job["processes"])


def come_back(machine: Machine, name: str = "llm") -> int:
    """Restores a job. Returns the bytes that were on the device still."""
    back = machine.ask("restore", name)
    assert (back.code, back.body.get("state")) == (0, "running"), back.body
    return int(back.body["resident_bytes"])


def test_it_comes_back_without_a_copy_again_and_again(machine: Machine) -> None:
    job = machine.told("llm", "alloc 6 3000000", "mixed 10 1000 2000000")
    before = job.ask()
    for _ in range(2):
        size = suspend(machine)
        assert (resident(machine), machine.used()) == (size, size + CONTEXT)  # of the worker
        back = machine.ask("restore", "llm")
        assert (back.body["resident_bytes"], back.body["bytes"]) == (size, size)
        assert back.body["refill_bytes_per_s"] is None
        assert job.ask() == before
        assert job.ask("again 2") == "ok"
        before = job.ask()
    assert resident(machine) == 0
    machine.leave()
    assert come_back(machine) == 0
    assert job.ask() == before


def test_a_checkpoint_without_the_option_frees_the_memory(machine: Machine) -> None:
    job = machine.told("llm", "alloc 6 3000000")
    before = job.ask()
    size, used = suspend(machine), machine.used()
    again = machine.ask("checkpoint", "llm", resident=True)
    assert again.body["error"]["code"] == "wrong_state"
    freed = machine.gcr("checkpoint", "llm")
    assert (freed.code, freed.body["bytes"], freed.body["vram_after_bytes"]) == (0, size, 0), freed.body
    assert (resident(machine), used - machine.used()) == (0, size)
    assert machine.ask("checkpoint", "llm").body["error"]["code"] == "wrong_state"
    assert come_back(machine) == 0
    assert job.ask() == before


@pytest.mark.parametrize("who", OURS)
def test_a_death_costs_what_is_on_the_device_and_never_the_job(machine: Machine, who: Who) -> None:
    job, before = machine.start()
    size = suspend(machine)
    condemned = who(machine, job)
    assert condemned
    kill(*condemned)
    if who is worker:
        until(lambda: resident(machine) == 0 or None, 20, "nothing is on the device")
        assert machine.used() == 0
    machine.settled()
    there = come_back(machine)
    assert there == (0 if who in (gcrd, worker) else size)
    assert job.ask() == before
    suspend(machine)
    machine.comes_back(job, before)


@pytest.mark.parametrize("who", [who for who in OURS if who is not supervisor])
def test_a_death_while_it_is_mapped_again(machine: Machine, who: Who) -> None:
    job, before = machine.start()
    for step in ("room", "back", "mapped", "decided"):
        suspend(machine)
        strike(machine, job, who, "restore", step)
        machine.comes_back(job, before)


def test_a_death_just_before_the_memory_stays(machine: Machine) -> None:
    """The decision is there, and the copy is whole."""
    job, before = machine.start()
    for who in (worker, gcrd):
        with machine.held_at("checkpoint.decided"):
            running = machine.asking.submit(machine.ask, "checkpoint", "llm", resident=True)
            machine.wait_held()
            kill(*who(machine, job))
        running.result(timeout=60)
        machine.settled()
        assert come_back(machine) == 0
        assert job.ask() == before


def test_a_restore_that_fails_leaves_the_memory_where_it_was(machine: Machine) -> None:
    job, before = machine.start()
    size = suspend(machine)
    for step in ("room", "back", "mapped"):
        machine.inject(f"restore.{step} fail")
        assert machine.ask("restore", "llm").code != 0
        machine.settled()
        assert (machine.job("llm")["state"], resident(machine)) == ("suspended", size), step
    assert come_back(machine) == size
    assert job.ask() == before


def test_it_is_released_with_its_process(machine: Machine) -> None:
    job = machine.told("llm", "alloc 6 3000000")
    suspend(machine)
    os.kill(machine.target("llm"), signal.SIGKILL)
    job.supervisor.wait(20)
    until(lambda: machine.job("llm") is None or None, 20, "the job is forgotten")
    until(lambda: machine.used() <= CONTEXT or None, 20, "the device is free")


def test_another_job_gets_the_room_of_the_one_that_was_suspended_first(machine: Machine) -> None:
    jobs = {name: machine.told(name) for name in ("large", "first", "second")}
    sizes = {"large": 22, "first": 10, "second": 10}  # of 6 MB
    before = {}
    for name, job in jobs.items():
        assert job.ask(f"alloc {sizes[name]} 6000000") == "ok"
        before[name] = job.ask()
        assert machine.ask("checkpoint", name, resident=name != "large").code == 0, name
    assert resident(machine, "first") and resident(machine, "second")
    assert come_back(machine, "large") == 0
    assert not resident(machine, "first")
    size = resident(machine, "second")
    assert come_back(machine, "second") == size > 0
    assert machine.ask("checkpoint", "large").code == 0
    assert come_back(machine, "first") == 0
    assert {name: jobs[name].ask() for name in ("first", "second")} == {n: before[n] for n in ("first", "second")}


def test_a_program_that_allocates_gets_the_room(machine: Machine) -> None:
    job, other = machine.told("llm", "alloc 20 6000000"), machine.told("other")
    before = job.ask()
    suspend(machine)
    assert other.ask("alloc 25 6000000") == "ok"
    assert resident(machine) == 0
    machine.end(other)
    assert come_back(machine) == 0
    assert job.ask() == before


def test_a_job_that_begins_finds_the_device_free(machine: Machine) -> None:
    job = machine.told("llm", "alloc 6 3000000")
    before = job.ask()
    suspend(machine)
    machine.told("other")
    assert resident(machine) == 0
    assert come_back(machine) == 0
    assert job.ask() == before


def test_drivers_have_their_sixteenth_of_the_device(machine: Machine) -> None:
    """They take memory without asking for any, also for programs that gcr knows nothing of."""
    job = machine.told("llm", "alloc 10 6000000")
    before = job.ask()
    suspend(machine)
    taker = machine.stranger()
    assert int(taker.ask("everything")) > 0
    until(lambda: resident(machine) == 0 or None, 20, "the memory is freed")
    taker.supervisor.kill()
    taker.supervisor.wait(10)
    assert come_back(machine) == 0
    assert job.ask() == before


def test_a_device_that_is_too_full_for_it_is_freed_at_once_and_the_report_says_so(machine: Machine) -> None:
    machine.memory = 512 * MIB  # a context is half of what drivers need to find free
    job = machine.told("llm", "alloc 10 6000000")
    before = job.ask()
    until(lambda: machine.children("gcr.worker") or None, 20, "the worker has its context")
    taker = machine.stranger()
    assert int(taker.ask("everything")) > 0
    gone = machine.ask("checkpoint", "llm", resident=True)
    assert (gone.code, gone.body["resident_bytes"], gone.body["vram_after_bytes"]) == (0, 0, 0), gone.body
    assert (resident(machine), gone.body["vram_free_s"] > 0) == (0, True)
    assert come_back(machine) == 0
    assert job.ask() == before


@pytest.mark.parametrize("machine", [at(AMD), at(ASCEND)], indirect=True)
def test_other_ways_of_saving_control_state_are_refused(machine: Machine) -> None:
    job, before = machine.start()
    refused = machine.ask("checkpoint", "llm", resident=True)
    assert (refused.code, refused.body["error"]["code"]) == (3, "unsupported_state"), refused.body
    assert (machine.job("llm")["state"], job.ask()) == ("running", before)
