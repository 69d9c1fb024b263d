"""A fault at every step: the target runs on, or is suspended as before, and a retry succeeds.

Each step in turn on the same job: remains of one failure would show at the next. NVIDIA's world and AMD's with
quirks differ in all that matters here, the copying process and saved control state; the others are slow.
"""

import time
from collections.abc import Callable

import pytest
from machine import Machine, kill, until
from worlds import AMD, ASCEND, ON_DEVICE, everywhere

from gcr.daemon.recovery import AT_ONCE

refused = pytest.mark.skipif(ON_DEVICE, reason="a real driver refuses nothing on demand")
MAP = {"nvidia": "cuMemMap", "amd": "hipMemMap", "ascend": "aclrtMapMem"}


@everywhere(slow=[AMD, ASCEND])
def test_a_checkpoint_that_fails_leaves_the_job_running(machine: Machine) -> None:
    job, before = machine.start()
    for step in machine.where.up_to_the_decision():
        machine.inject(f"checkpoint.{step} fail")
        failed = machine.ask("checkpoint", "llm", **machine.where.how)
        assert (failed.code, failed.body["error"]["code"]) == (4, "injected_fault"), (step, failed.body)
        assert machine.job("llm")["state"] == "running", step
        assert job.ask() == before, step
        machine.leave()
        machine.come_back()
        assert job.ask() == before, step


@everywhere(slow=[AMD, ASCEND])
def test_a_restore_that_fails_leaves_the_job_suspended(machine: Machine) -> None:
    job, before = machine.start()
    for step in machine.where.before_it_runs():
        machine.leave()
        machine.inject(f"restore.{step} fail")
        failed = machine.ask("restore", "llm")
        assert failed.code == 4, (step, failed.body)
        assert "injected" in failed.body["error"]["message"], (step, failed.body)
        assert machine.job("llm")["state"] == machine.where.suspended, step
        machine.come_back()
        assert job.ask() == before, step


def fails_and_is_not_taken_back(machine: Machine, step: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """A checkpoint fails at `step`, and the driver refuses to map the memory again."""
    (pid,) = machine.targets("llm")
    held = machine.folder / "held"
    machine.inject(f"checkpoint.{step} hold {held}", f"checkpoint.{step} fail")
    running = machine.command("checkpoint")
    machine.wait_held()
    meanwhile()
    (machine.simulated / "faults").write_text(f"{MAP[machine.vendor]}@{pid}:1+:fail=999\n")
    held.unlink()
    answer = running.result(timeout=60)
    assert (answer.code, answer.body["error"]["code"]) == (5, "stands_still"), answer.body
    assert f"process {pid} stands still" in answer.body["error"]["message"]
    assert answer.body["error"]["state"] in ("handed_over", "drained"), answer.body


def is_recovered(machine: Machine) -> None:
    """The driver refuses nothing any more."""
    (machine.simulated / "faults").write_text("")
    until(lambda: machine.gcr("recover").code == 0, 20, "it is recovered, unless that goes on already")


@refused
@pytest.mark.parametrize("step", ["handed_over", "staged"])
@everywhere(slow=[AMD, ASCEND])
def test_a_failure_that_cannot_be_taken_back_at_once_loses_nothing(machine: Machine, step: str) -> None:
    """The next command finds the memory in its place."""
    job, before = machine.start()
    fails_and_is_not_taken_back(machine, step)
    is_recovered(machine)
    machine.comes_back(job, before)


@refused
def test_a_driver_that_refuses_for_a_while_is_asked_again_by_itself(machine: Machine) -> None:
    job, before = machine.start()
    fails_and_is_not_taken_back(machine, "handed_over")
    time.sleep(sum(AT_ONCE) + 1)
    assert machine.job("llm")["state"] == "handed_over"  # type: ignore[index]
    (machine.simulated / "faults").write_text("")
    assert machine.until_state("llm", "running") == "running"
    assert job.ask() == before


@refused
@everywhere(slow=[AMD, ASCEND])
def test_nor_does_one_whose_supervisor_died_before(machine: Machine) -> None:
    """The daemon's own duplicates are all there is besides the workers', and outlive the transaction."""
    machine.extra["GCR_BATCH"] = "1"  # the first handle that is refused must not be the only one that is kept
    job, before = machine.start()
    fails_and_is_not_taken_back(machine, "handed_over", lambda: kill(job.supervisor.pid))
    is_recovered(machine)
    machine.comes_back(job, before)
