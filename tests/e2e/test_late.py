"""The daemon dies with a job of two processes in the middle of something, and they come back one after the other.

A process that is stopped (SIGSTOP) cannot say HELLO: so each of the two is the late one once, within the time that a
new daemon waits for all, and (slow) beyond it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from machine import VICTIMS, Machine, Victim, alive, until

from gcr.daemon.arrivals import TOGETHER_WITHIN

GAPS = [pytest.param(0.5, id="soon"), pytest.param(TOGETHER_WITHIN + 1.5, id="late", marks=pytest.mark.slow)]
LATE = pytest.mark.parametrize("late_one", [0, 1], ids=["first is late", "second is late"])


def pair(machine: Machine) -> tuple[Victim, str, list[int]]:
    job = machine.run("pair", sys.executable, str(VICTIMS / "pair_victim.py"))
    pids = machine.targets("pair", 2)
    return job, job.ask(), pids


@contextmanager
def late(pid: int, gap: float) -> Iterator[None]:
    """Within the block the process stands still; afterwards it does so for `gap` seconds more."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
        time.sleep(gap)
    finally:
        os.kill(pid, signal.SIGCONT)


def kill_daemon(machine: Machine) -> None:
    """And see the next one serve."""
    (old,) = machine.children("gcr.daemon")
    os.kill(old, signal.SIGKILL)
    until(lambda: not alive(old) or None, 10, "it is dead")
    machine.daemon()


def comes_back(machine: Machine, job: Victim, before: str) -> None:
    if machine.until_state("pair", "running", "suspended", patience=60) == "suspended":
        back = machine.ask("restore", "pair")
        assert back.code == 0, back.body
    assert job.ask() == before
    gone = machine.ask("checkpoint", "pair")
    assert (gone.code, gone.body.get("vram_after_bytes")) == (0, 0), gone.body
    assert len({row["pid"] for row in gone.body["processes"]}) == 2
    assert machine.ask("restore", "pair").code == 0
    assert job.ask() == before


@pytest.mark.parametrize("gap", GAPS)
@LATE
def test_of_a_suspended_job(machine: Machine, late_one: int, gap: float) -> None:
    job, before, pids = pair(machine)
    assert machine.ask("checkpoint", "pair").code == 0
    with late(pids[late_one], gap):
        kill_daemon(machine)
    comes_back(machine, job, before)


@pytest.mark.parametrize("gap", GAPS)
@LATE
@pytest.mark.parametrize(
    ("command", "step"),
    [
        ("checkpoint", "drained"),
        ("restore", "back"),
        pytest.param("checkpoint", "quiesced", marks=pytest.mark.slow),
        pytest.param("checkpoint", "decided", marks=pytest.mark.slow),
        pytest.param("restore", "decided", marks=pytest.mark.slow),
    ],
)
def test_in_the_middle_of_a_command(machine: Machine, command: str, step: str, late_one: int, gap: float) -> None:
    job, before, pids = pair(machine)
    if command == "restore":
        assert machine.ask("checkpoint", "pair").code == 0
    with held(machine, command, step), late(pids[late_one], gap):
        kill_daemon(machine)
    comes_back(machine, job, before)


@contextmanager
def held(machine: Machine, command: str, step: str) -> Iterator["subprocess.Popen[str]"]:
    with machine.held_at(f"{command}.{step}"):
        running = machine.begin(command, "pair", "--timeout", "40")
        machine.wait_held()
        yield running
    running.communicate(timeout=60)


@pytest.mark.parametrize(
    ("late_one", "left", "command"),
    [
        pytest.param(0, {}, "restore", id="restore, first is late"),
        pytest.param(1, {}, "restore", id="restore, second is late"),
        pytest.param(1, {"data_only": True}, "checkpoint", id="checkpoint, second is late"),
    ],
)
def test_a_command_that_comes_before_the_late_one_waits_or_is_refused(
    machine: Machine, late_one: int, left: dict[str, bool], command: str
) -> None:
    """Never half a job: while a process is stopped a command is refused; it waits for one that is about to connect."""
    job, before, pids = pair(machine)
    state = machine.ask("checkpoint", "pair", **left).body["state"]
    with late(pids[late_one], 0):
        kill_daemon(machine)
        refused = machine.gcr(command, "pair", "--timeout", "40").body["error"]
        assert (refused["code"], refused["state"]) == ("wrong_state", state), refused
    done = machine.ask(command, "pair")  # before its agent has connected
    assert done.code == 0, done.body
    comes_back(machine, job, before)
