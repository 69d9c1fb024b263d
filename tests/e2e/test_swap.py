"""The promise itself: a job off its device and back, bit for bit, at the same addresses."""

import sys

from machine import VICTIMS, Machine
from worlds import AMD_QUIRKS, everywhere

VMM = str(VICTIMS / "vmm_victim.py")
SWAPS = 5


def test_memory_that_it_maps_itself(machine: Machine) -> None:
    job = machine.run("llm", sys.executable, VMM, "--interactive")
    before = job.ask()
    assert machine.leave().body["bytes"] > 0
    machine.come_back()
    assert job.ask() == before


@everywhere()
def test_a_job_goes_and_comes_back_as_it_was(machine: Machine) -> None:
    """Once by the commands, then a few times more."""
    job = machine.told("llm", "mixed 30 1000 5000000", "free_some 7", machine.where.handles(5))
    before, addresses = job.ask(), job.ask("address")
    gone = machine.gcr("checkpoint", "llm", *machine.where.options)
    assert gone.code == 0, gone.body
    assert (gone.body["state"], gone.body["strategy"]) == (machine.where.suspended, machine.where.strategy)
    assert gone.body["bytes"] > 0
    assert (gone.body["control_s"] is None) is machine.where.data_only
    back = machine.gcr("restore", "llm")
    assert (back.code, back.body["state"], back.body["bytes"]) == (0, "running", gone.body["bytes"]), back.body
    assert (job.ask(), job.ask("address")) == (before, addresses)
    for _ in range(SWAPS):
        machine.leave()
        machine.come_back()
        assert job.ask() == before
    assert job.ask("alloc 2 1000000") == "ok"
    more = job.ask()
    machine.leave()
    machine.come_back()
    assert job.ask() == more != before


@everywhere(slow=[AMD_QUIRKS])
def test_its_arithmetic_is_that_of_a_bare_run(machine: Machine) -> None:
    """Threads that allocate, copy and launch, up to the same step."""
    job, before = machine.start()
    machine.leave()
    machine.come_back()
    assert job.ask() == before
    assert machine.bare(*machine.allocating("--steps", "60")).strip() == before


def test_data_only_keeps_the_context_and_frees_the_data(machine: Machine) -> None:
    job, before = machine.start()
    gone = machine.gcr("checkpoint", "llm", "--data-only")
    assert gone.code == 0, gone.body
    assert gone.body["state"] == "data_suspended"
    assert gone.body["control_s"] is None
    machine.come_back()
    assert job.ask() == before


@everywhere(slow=[AMD_QUIRKS])
def test_what_the_program_calls_while_it_is_suspended_waits(machine: Machine) -> None:
    """r580 lets cuStreamSynchronize through its own lock, and a checkpointed program that calls it dies of it."""
    job, before = machine.start()
    machine.leave()
    job.tell()
    assert job.silent(0.4)
    assert machine.job("llm")["state"] == machine.where.suspended
    assert job.supervisor.poll() is None
    machine.come_back()
    assert job.hear() == before
