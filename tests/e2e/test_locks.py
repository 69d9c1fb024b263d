"""A job of several processes is locked in the driver as a whole before the control state of any is saved."""

import sys
import time
from pathlib import Path

import pytest
from machine import VICTIMS, Machine, Victim, kill

PAIR = str(VICTIMS / "pair_victim.py")
DRIVER_REFUSES = 999


def pair(machine: Machine) -> tuple[Victim, str, int, int]:
    """Returns a job of two processes, its answer, and their pids: the parent's and the child's."""
    job = machine.run("pair", sys.executable, PAIR)
    first, second = machine.targets("pair", 2)
    parent, child = (first, second) if str(first) == parent_of(second) else (second, first)
    return job, job.ask(), parent, child


def parent_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]


def driver_does(machine: Machine, *rules: str) -> None:
    (machine.simulated / "faults").write_text("\n".join(rules) + "\n")


def comes_back(machine: Machine, job: Victim, before: str) -> None:
    assert job.ask() == before
    assert machine.ask("checkpoint", "pair").code == 0
    assert machine.ask("restore", "pair").code == 0
    assert job.ask() == before


@pytest.mark.parametrize("which", ["parent", "child"])
def test_what_the_driver_refuses_at_a_lock_costs_no_process_its_control_state(machine: Machine, which: str) -> None:
    """A process that was checkpointed before the other's lock would die here, and not run on."""
    job, before, parent, child = pair(machine)
    locked, other = (parent, child) if which == "parent" else (child, parent)
    driver_does(
        machine,
        f"checkpoint.lock@{locked}:1:fail={DRIVER_REFUSES}",
        f"checkpoint.checkpoint@{other}:1+:die",
        f"checkpoint.checkpoint@{locked}:1+:die",
    )
    failed = machine.gcr("checkpoint", "pair")
    assert (failed.code, failed.body["error"]["state"]) == (4, "running"), failed.body
    driver_does(machine)
    comes_back(machine, job, before)


def test_a_process_that_dies_at_its_lock_leaves_the_other_running(machine: Machine) -> None:
    job, before, parent, child = pair(machine)
    driver_does(machine, f"checkpoint.lock@{child}:1:die")
    gone = machine.gcr("checkpoint", "pair")
    if gone.code == 0:  # begun again, with the one that is left
        assert [row["pid"] for row in gone.body["processes"]] == [parent]
        assert machine.gcr("restore", "pair").code == 0
    comes_back(machine, job, before.partition("|")[0] + "| child gone")


@pytest.mark.parametrize("who", ["gcr.daemon", "gcr.control_helper"])
def test_a_death_while_one_of_two_is_locked(machine: Machine, who: str) -> None:
    job, before, _, child = pair(machine)
    driver_does(machine, f"checkpoint.lock@{child}:1:delay=1500")  # the other is locked, and stands at the step
    with machine.held_at("checkpoint.locked"):
        running = machine.command("checkpoint", "pair")
        machine.wait_held()
        (pid,) = machine.children(who)
        kill(pid)
    running.result(timeout=60)
    if machine.until_state("pair", "running", "suspended") == "suspended":
        assert machine.ask("restore", "pair").code == 0
    comes_back(machine, job, before)


def test_a_restore_that_the_driver_refuses_ends_with_its_deadline(machine: Machine) -> None:
    """The driver is asked again and again, since it may only be late: for as long as the caller waits."""
    job, before, parent, _ = pair(machine)
    assert machine.gcr("checkpoint", "pair").code == 0
    driver_does(machine, f"checkpoint.restore@{parent}:1+:fail={DRIVER_REFUSES}")
    began = time.monotonic()
    failed = machine.gcr("restore", "pair", "--timeout", "2")
    assert (failed.code, failed.body["error"]["state"]) == (4, "suspended"), failed.body
    assert 2 <= time.monotonic() - began < 10
    driver_does(machine)
    assert machine.gcr("restore", "pair").code == 0
    comes_back(machine, job, before)
