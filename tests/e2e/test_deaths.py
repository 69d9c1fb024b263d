"""kill -9 of any one process at any step (DESIGN §3): the target runs on or is restorable, and a retry succeeds."""

import os
import signal
import sys
from collections.abc import Callable

import pytest
from machine import VICTIMS, Machine, Victim, alive, until

ALLOC = str(VICTIMS / "alloc_victim.py")

CHECKPOINT_STEPS = ["prepared", "quiesced", "handed_over", "frozen", "drained", "staged", "decided", "committed_one"]
RESTORE_STEPS = ["room", "refilled", "back", "mapped", "decided", "opened_one"]


def gcrd(machine: Machine, _job: Victim) -> list[int]:
    return machine.children("gcr.daemon")


def worker(machine: Machine, _job: Victim) -> list[int]:
    return machine.children("gcr.worker")


def control_helper(machine: Machine, _job: Victim) -> list[int]:
    return machine.children("gcr.control_helper")


def supervisor(_machine: Machine, job: Victim) -> list[int]:
    return [job.supervisor.pid]


OURS = [gcrd, worker, control_helper, supervisor]


def start(machine: Machine) -> tuple[Victim, str]:
    job = machine.run("llm", sys.executable, ALLOC, "--interactive", "--steps", "60")
    return job, job.ask()


def strike(machine: Machine, job: Victim, who: Callable[[Machine, Victim], list[int]], command: str, step: str) -> None:
    """Kill whoever it is while the command stands at the step."""
    with machine.held_at(f"{command}.{step}"):
        running = machine.begin(command, "llm", "--timeout", "40")
        machine.wait_held()
        for pid in who(machine, job):
            os.kill(pid, signal.SIGKILL)
            until(lambda p=pid: not alive(p) or None, 10, "it is dead")
    running.communicate(timeout=60)


def settled(machine: Machine) -> str:
    return machine.until_state("llm", "running", "suspended")


def comes_back(machine: Machine, job: Victim, before: str) -> None:
    """Whatever state it is in now, it can be brought to run, swapped once more, and is what it was."""
    if settled(machine) == "suspended":
        assert machine.ask("restore", "llm").code == 0
    assert job.ask() == before
    gone = machine.ask("checkpoint", "llm")
    assert gone.code == 0, gone.body
    assert gone.body["vram_after_bytes"] == 0
    back = machine.ask("restore", "llm")
    assert back.code == 0, back.body
    assert job.ask() == before


@pytest.mark.parametrize("step", CHECKPOINT_STEPS)
@pytest.mark.parametrize("who", OURS, ids=lambda who: who.__name__)
def test_a_death_during_a_checkpoint(machine: Machine, who: Callable[..., list[int]], step: str) -> None:
    job, before = start(machine)
    strike(machine, job, who, "checkpoint", step)
    comes_back(machine, job, before)


@pytest.mark.parametrize("step", RESTORE_STEPS)
@pytest.mark.parametrize("who", OURS, ids=lambda who: who.__name__)
def test_a_death_during_a_restore(machine: Machine, who: Callable[..., list[int]], step: str) -> None:
    job, before = start(machine)
    assert machine.ask("checkpoint", "llm").code == 0
    strike(machine, job, who, "restore", step)
    comes_back(machine, job, before)


@pytest.mark.parametrize("step", ["prepared", "quiesced", "handed_over", "frozen", "decided"])
def test_the_target_dies_and_everything_of_it_is_released(machine: Machine, step: str) -> None:
    job, _ = start(machine)
    pid = machine.target("llm")
    strike(machine, job, lambda _m, _j: [pid], "checkpoint", step)
    job.supervisor.wait(timeout=20)
    assert job.supervisor.returncode == 128 + signal.SIGKILL
    until(lambda: machine.job("llm") is None or None, 20, "the job is forgotten")
    again, before = start(machine)
    comes_back(machine, again, before)


def test_the_caller_leaves_and_the_checkpoint_is_taken_back(machine: Machine) -> None:
    job, before = start(machine)
    with machine.held_at("checkpoint.quiesced"):
        running = machine.begin("checkpoint", "llm")
        machine.wait_held()
        running.kill()
        running.wait(timeout=10)
    machine.until_state("llm", "running")
    assert job.ask() == before


def test_two_daemons_die_one_after_the_other(machine: Machine) -> None:
    job, before = start(machine)
    strike(machine, job, gcrd, "checkpoint", "frozen")
    settled(machine)
    assert job.ask() == before
    for pid in gcrd(machine, job):
        os.kill(pid, signal.SIGKILL)
    comes_back(machine, job, before)


def test_the_supervisor_dies_and_then_the_checkpoint_fails(machine: Machine) -> None:
    """What was handed over is in nobody's escrow but the daemon's own: imported memory cannot be exported again."""
    job, before = start(machine)
    held = machine.folder / "held"
    machine.inject(f"checkpoint.handed_over hold {held}", "checkpoint.staged fail")
    running = machine.begin("checkpoint", "llm", "--timeout", "40")
    machine.wait_held()
    os.kill(job.supervisor.pid, signal.SIGKILL)
    until(lambda: not alive(job.supervisor.pid) or None, 10, "it is dead")
    held.unlink()
    running.communicate(timeout=60)
    assert settled(machine) == "running"
    comes_back(machine, job, before)
