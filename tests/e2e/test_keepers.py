"""Keepers of memory that a process got back and cannot export again: any of them may die, and all of them."""

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
    """Kills a process and waits until its death has been dealt with."""
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
    """Its memory is made anew, as for a program that became a daemon after gcr's daemon stopped."""
    job, before = swapped_once(machine)
    gone(machine, job, "supervisor")
    gone(machine, job, "daemon")
    machine.comes_back(job, before)
    if not machine.where.copies:
        assert ANEW in machine.logs()["gcrd.log"]


@pytest.mark.parametrize("deaths", [("daemon", "supervisor"), ("worker", "supervisor")], ids="-".join)
def test_two_die_one_after_the_other(machine: Machine, deaths: Sequence[str]) -> None:
    """The first one's copies are made again from the second before that dies."""
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


def away_over_a_restore(machine: Machine) -> tuple[Victim, str]:
    """Returns a job and its content; its supervisor has memory of an earlier restore, its daemon has just died.

    A daemon that the supervisor had not met checkpointed and restored the job.
    """
    job = machine.told("llm", "alloc 3 100000")
    machine.leave()
    machine.come_back()
    os.kill(job.supervisor.pid, signal.SIGSTOP)
    gone(machine, job, "daemon")
    machine.leave()
    machine.come_back()
    for index in range(3):
        job.ask(f"again {index}")
    now = job.ask()
    gone(machine, job, "daemon")
    return job, now


def supervisor_is_back(machine: Machine, job: Victim) -> None:
    with machine.another_connects():
        os.kill(job.supervisor.pid, signal.SIGCONT)


@pytest.mark.first
@everywhere(slow=[AMD, AMD_QUIRKS, ASCEND])
def test_no_older_memory_is_taken_from_a_supervisor_that_was_away(machine: Machine) -> None:
    """It has other memory under the same ids, and the daemon that knew of it has died."""
    job, now = away_over_a_restore(machine)
    supervisor_is_back(machine, job)
    machine.comes_back(job, now)


@pytest.mark.first
def test_no_older_memory_is_taken_by_a_checkpoint_that_is_taken_back(machine: Machine) -> None:
    """The way back of a failed checkpoint begins with the keeper's memory."""
    job, now = away_over_a_restore(machine)
    supervisor_is_back(machine, job)
    machine.inject("checkpoint.staged fail")
    assert machine.ask("checkpoint", "llm", **machine.where.how).body["error"]["code"] == "injected_fault"
    assert job.ask() == now
    machine.comes_back(job, now)


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
