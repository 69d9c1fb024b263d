"""The promise itself: a job off its device and back, bit for bit, at the same addresses."""

import sys
import time

import pytest
from machine import VICTIMS, Machine

VMM = str(VICTIMS / "vmm_victim.py")
ALLOC = str(VICTIMS / "alloc_victim.py")


@pytest.mark.parametrize("victim", [VMM, ALLOC])
def test_a_job_goes_and_comes_back_as_it_was(machine: Machine, victim: str) -> None:
    job = machine.run("llm", sys.executable, victim, "--interactive")
    before = job.ask()

    gone = machine.gcr("checkpoint", "llm")
    assert gone.code == 0, gone.body
    assert gone.body["state"] == "suspended"
    assert gone.body["bytes"] > 0
    assert gone.body["vram_after_bytes"] == 0

    back = machine.gcr("restore", "llm")
    assert back.code == 0, back.body
    assert back.body["state"] == "running"
    assert job.ask() == before


def test_data_only_keeps_the_context_and_frees_the_data(machine: Machine) -> None:
    job = machine.run("llm", sys.executable, ALLOC, "--interactive")
    before = job.ask()
    gone = machine.gcr("checkpoint", "llm", "--data-only")
    assert gone.code == 0, gone.body
    assert gone.body["state"] == "data_suspended"
    assert gone.body["control_s"] is None
    assert machine.gcr("restore", "llm").code == 0
    assert job.ask() == before


def test_ten_swaps_in_a_row(machine: Machine) -> None:
    job = machine.run("llm", sys.executable, ALLOC, "--interactive")
    before = job.ask()
    for _ in range(10):
        assert machine.gcr("checkpoint", "llm").code == 0
        assert machine.gcr("restore", "llm").code == 0
        assert job.ask() == before


def test_what_the_program_calls_while_it_is_suspended_waits(machine: Machine) -> None:
    """r580 lets cuStreamSynchronize through its own lock, and a checkpointed program that calls it dies of it."""
    job = machine.run("llm", sys.executable, ALLOC, "--interactive")
    before = job.ask()
    assert machine.gcr("checkpoint", "llm").code == 0
    job.tell()
    time.sleep(0.5)
    assert machine.job("llm")["state"] == "suspended"
    assert job.supervisor.poll() is None
    assert machine.gcr("restore", "llm").code == 0
    assert job.hear() == before
