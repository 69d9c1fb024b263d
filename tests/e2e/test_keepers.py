"""Who keeps memory that a process was given back, and cannot export again: any of them may die, and all of them."""

import os
import signal
from collections.abc import Sequence

import pytest
from machine import Machine, Victim, kill, until
from worlds import AMD, AMD_QUIRKS, ASCEND, everywhere

ANEW = "made anew"
MADE_UP = "made up"
CONTEXT = 16 << 20


def gone(machine: Machine, job: Victim, who: str) -> None:
    """It has died, and whatever follows from that has been done."""
    if who == "supervisor":
        kill(job.supervisor.pid)
        job.supervisor.wait()
    else:
        kill(*machine.children(f"gcr.{who}"))
        machine.daemon()
    until(lambda: machine.job("llm") is not None or None, 30, "the job is known")


def swapped_once(machine: Machine) -> tuple[Victim, str]:
    job, before = machine.start()
    machine.leave()
    machine.come_back()
    return job, before


@everywhere(slow=[AMD, AMD_QUIRKS, ASCEND])
def test_all_keepers_die(machine: Machine) -> None:
    """As of a program that became a daemon, once the daemon is stopped: its memory is made anew."""
    job, before = swapped_once(machine)
    gone(machine, job, "supervisor")
    gone(machine, job, "daemon")
    machine.comes_back(job, before)
    if not machine.where.copies:
        assert ANEW in machine.logs()["gcrd.log"]


@pytest.mark.parametrize("deaths", [("daemon", "supervisor"), ("worker", "supervisor")], ids="-".join)
def test_two_die_one_after_the_other(machine: Machine, deaths: Sequence[str]) -> None:
    """What the first had is copied from the second before it dies."""
    job, before = swapped_once(machine)
    gone(machine, job, deaths[0])
    if deaths[0] == "daemon":
        until(lambda: MADE_UP in machine.logs()["gcrd.log"] or None, 30, "the next daemon has copies")
    gone(machine, job, deaths[1])
    machine.comes_back(job, before)
    assert ANEW not in machine.logs()["gcrd.log"]


def test_a_supervisor_that_was_away_lets_go_of_what_the_job_no_longer_has(machine: Machine) -> None:
    """Its job was made anew and suspended meanwhile, by a daemon that it had not met."""
    job, before = swapped_once(machine)
    os.kill(job.supervisor.pid, signal.SIGSTOP)
    gone(machine, job, "daemon")
    machine.leave()
    os.kill(job.supervisor.pid, signal.SIGCONT)
    until(lambda: machine.used() <= CONTEXT or None, 30, "no more is left than the worker's context")
    machine.comes_back(job, before)


def test_a_suspended_program_closes_everything_and_its_worker_dies(machine: Machine) -> None:
    """The supervisor has what the agent kept."""
    job = machine.told("llm", "alloc 3 100000")
    before = job.ask()
    machine.leave()
    job.tell("close_copies")
    assert int(job.hear()) >= 2  # a table and a segment at least
    kill(*machine.children("gcr.worker"))
    until(lambda: machine.ask("restore", "llm").code == 0 or None, 30, "the agent is back, and so is the job")
    assert job.ask() == before
