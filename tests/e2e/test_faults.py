"""A fault at every step: the target runs on, or is as suspended as before, and a retry succeeds."""

import sys

import pytest
from machine import VICTIMS, Machine, Victim

ALLOC = str(VICTIMS / "alloc_victim.py")

BEFORE_THE_DECISION = ["prepared", "stop", "quiesced", "handed_over", "frozen", "drained", "staged"]
BEFORE_IT_RUNS = ["room", "refilled", "back", "mapped"]


def start(machine: Machine) -> tuple[Victim, str]:
    job = machine.run("llm", sys.executable, ALLOC, "--interactive", "--steps", "60")
    return job, job.ask()


@pytest.mark.parametrize("step", BEFORE_THE_DECISION)
def test_a_checkpoint_that_fails_leaves_the_job_running(machine: Machine, step: str) -> None:
    job, before = start(machine)
    machine.inject(f"checkpoint.{step} fail")
    failed = machine.gcr("checkpoint", "llm")
    assert failed.code == 4, failed.body
    assert failed.body["error"]["code"] == "injected_fault"
    assert job.ask() == before
    assert machine.job("llm")["state"] == "running"

    assert machine.ask("checkpoint", "llm").code == 0
    assert machine.ask("restore", "llm").code == 0
    assert job.ask() == before


@pytest.mark.parametrize("step", BEFORE_IT_RUNS)
def test_a_restore_that_fails_leaves_the_job_suspended(machine: Machine, step: str) -> None:
    job, before = start(machine)
    assert machine.ask("checkpoint", "llm").code == 0
    machine.inject(f"restore.{step} fail")
    failed = machine.gcr("restore", "llm")
    assert failed.code == 4, failed.body
    assert machine.job("llm")["state"] == "suspended"

    assert machine.ask("restore", "llm").code == 0
    assert job.ask() == before
