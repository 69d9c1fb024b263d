"""A fault at every step: the target runs on, or is as suspended as before, and a retry succeeds.

Each step in turn on the same job: what one failure left behind would show at the next.
"""

from machine import Machine
from worlds import everywhere


@everywhere()
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


@everywhere()
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
