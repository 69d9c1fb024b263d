"""Processes that have yet to call their driver: one of a job that is off its devices waits at its first call."""

import sys
from pathlib import Path
from typing import Any

import pytest
from machine import PATIENCE, VICTIMS, Machine, Victim, kill, until
from refusals import refused
from worlds import everywhere

LIBRARIES = {"nvidia": "libcuda.so.1", "amd": "libamdhip64.so", "ascend": "libascendcl.so"}
LOADED = """
import ctypes, runpy, sys
ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
while (line := input()) != "begin":
    print(line, flush=True)
sys.argv[1:] = []
sys.path.insert(0, {folder!r})
runpy.run_path({told!r}, run_name="__main__")
"""


def loaded(machine: Machine) -> Victim:
    """A program that has its driver loaded; told to `begin` it makes its first call, and is ready to be told more."""
    text = LOADED.format(folder=str(VICTIMS), told=str(VICTIMS / machine.where.told))
    return machine.run("llm", sys.executable, "-c", text, LIBRARIES[machine.vendor])


def began(job: Victim) -> None:
    """It has come by its first call, and its memory can be written and read."""
    assert job.hear() == "ready"
    assert job.ask("alloc 3 100000") == "ok"
    assert job.ask() == job.ask()


def comes_to(machine: Machine) -> Victim:
    """Starts another process of the job: a process with the job's token belongs to it."""
    of_job = Path(f"/proc/{machine.target('llm')}/environ").read_bytes().decode().split("\0")
    env = dict(pair.split("=", 1) for pair in of_job if "=" in pair)
    return Victim("child", machine._popen([sys.executable, str(VICTIMS / machine.where.told)], env))


def stands(machine: Machine, job: Victim, count: int = 1) -> None:
    """So many processes of the job have agents, and this one waits."""
    until(lambda: heard(machine, count), PATIENCE, "its agent is there")
    assert job.silent()


def heard(machine: Machine, count: int) -> list[dict[str, Any]]:
    rows = [row for row in machine.job("llm")["processes"] if row["device"]]  # type: ignore[index]
    return rows if len({row["pid"] for row in rows}) == count else []


@everywhere()
def test_it_waits_at_its_first_call_until_it_is_restored(machine: Machine) -> None:
    job = loaded(machine)
    assert job.ask("here") == "here"
    gone = machine.gcr("checkpoint", "llm", *machine.where.options)
    assert (gone.code, gone.body.get("state"), gone.body.get("bytes")) == (0, machine.where.suspended, 0), gone.body
    assert job.ask("it runs on") == "it runs on"
    refused(machine.gcr("checkpoint", "llm"), "wrong_state")
    job.tell("begin")
    stands(machine, job)
    (row,) = machine.job("llm")["processes"]  # type: ignore[index]
    assert (row["state"], row["bytes"]) == (machine.where.suspended, 0)
    back = machine.gcr("restore", "llm")
    assert (back.code, back.body.get("state")) == (0, "running"), back.body
    began(job)
    machine.leave()
    machine.come_back()
    assert job.ask() == job.ask()


def test_it_may_begin_only_after_its_restore(machine: Machine) -> None:
    """It had made no call when it was suspended, and makes none until long after it came back."""
    job = loaded(machine)
    machine.leave()
    machine.come_back()
    assert machine.job("llm")["processes"] == []  # type: ignore[index]
    job.tell("begin")
    began(job)


def test_a_process_that_comes_to_a_suspended_job(machine: Machine) -> None:
    """A child begun meanwhile waits as its job does; what others see of the device stays free of it."""
    job = machine.told("llm", "alloc 3 100000")
    before = job.ask()
    machine.leave()
    free = machine.used()
    child = comes_to(machine)
    stands(machine, child, 2)
    assert machine.used() == free
    machine.come_back()
    assert child.hear() == "ready"
    assert job.ask() == before


@pytest.mark.parametrize("step", ["prepared", "drained"])
def test_one_that_comes_in_a_checkpoint_that_fails(machine: Machine, step: str) -> None:
    job = machine.told("llm", "alloc 3 100000")
    before = job.ask()
    with machine.held_at(f"checkpoint.{step}"):
        leaving = machine.begin("checkpoint", "llm")
        machine.wait_held()
        child = comes_to(machine)
        stands(machine, child, 2)
        machine.leaves(leaving.kill)
    machine.until_state("llm", "running")
    assert child.hear() == "ready"
    assert job.ask() == before


def test_a_daemon_that_dies_while_it_waits(machine: Machine) -> None:
    """Its successor knows from the journal that the job is suspended."""
    job = loaded(machine)
    machine.leave()
    job.tell("begin")
    stands(machine, job)
    kill(*machine.children("gcr.daemon"))
    machine.settled()
    assert job.silent(1.0)
    machine.come_back()
    began(job)
