"""vLLM's sleep mode by gcr: the command comes from inside the job, and the worker goes on asking meanwhile.

vLLM itself is a stand-in here (tests/victims/vllm_standin); unit/test_vllm_interface.py looks at the real one.
"""

import sys

from machine import VICTIMS, Machine, Victim
from test_context import CONTEXT
from test_resident import resident


def worker(machine: Machine) -> Victim:
    job = machine.run("llm", sys.executable, str(VICTIMS / "sleep_victim.py"))
    assert job.ask("alloc 6 3000000") == "ok"
    return job


def test_a_worker_sleeps_and_wakes_again_and_again(machine: Machine) -> None:
    job = worker(machine)
    before = job.ask()
    for _ in range(2):
        freed = int(job.ask("sleep"))
        assert machine.job("llm")["state"] == "suspended"
        assert freed >= resident(machine) - CONTEXT > 0
        assert int(job.ask("free_bytes")) > 0
        assert job.ask("wake") == "RUNNING"
        assert machine.job("llm")["state"] == "running"
        assert job.ask() == before


def test_it_is_woken_by_others_and_put_to_sleep_by_others(machine: Machine) -> None:
    job = worker(machine)
    before = job.ask()
    int(job.ask("sleep"))
    assert machine.gcr("restore", "llm").code == 0
    assert job.ask("wake") == "RUNNING"
    assert job.ask() == before
    assert machine.gcr("checkpoint", "llm").code == 0
    assert int(job.ask("free_bytes")) > 0
    assert job.ask("wake") == "RUNNING"
    assert job.ask() == before


def test_where_gcr_refuses_the_worker_runs_on(machine: Machine) -> None:
    machine.extra["GCR_SIM_DRIVER"] = "550.90.07"  # it cannot save control state
    job = worker(machine)
    before = job.ask()
    said = job.ask("sleep")
    assert said.startswith("RUNNING: gcr: driver_too_old"), said
    assert job.ask() == before
