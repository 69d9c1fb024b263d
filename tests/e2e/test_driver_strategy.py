"""Strategy `driver`: a program that gcr did not start. The driver carries its data; gcr only asks it to."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from machine import VICTIMS, Machine, Victim, kill, until


def start(machine: Machine) -> tuple[Victim, int, str]:
    victim = machine.stranger()
    victim.ask("alloc 5 1000000")
    return victim, victim.supervisor.pid, victim.ask()


def test_it_goes_and_comes_back(machine: Machine) -> None:
    victim, pid, before = start(machine)
    gone = machine.gcr("checkpoint", str(pid))
    assert gone.code == 0, gone.body
    assert (gone.body["strategy"], gone.body["state"], gone.body["vram_after_bytes"]) == ("driver", "suspended", 0)
    assert gone.body["bytes"] >= 5_000_000
    victim.tell()
    assert victim.silent()
    back = machine.gcr("restore", str(pid))
    assert (back.code, back.body["state"]) == (0, "running"), back.body
    assert victim.hear() == before


def test_again_and_again(machine: Machine) -> None:
    victim, pid, before = start(machine)
    for _ in range(3):
        assert machine.ask("checkpoint", pid).code == 0
        assert machine.ask("checkpoint", pid).body["error"]["code"] == "wrong_state"
        assert machine.ask("restore", pid).code == 0
        assert machine.ask("restore", pid).code == 3
        assert victim.ask() == before


def test_the_daemon_dies_in_between(machine: Machine) -> None:
    victim, pid, before = start(machine)
    assert machine.ask("checkpoint", pid).code == 0
    os.kill(machine.daemon(), signal.SIGKILL)
    assert machine.until_state(str(pid), "suspended")
    assert machine.gcr("restore", str(pid)).code == 0
    assert victim.ask() == before


@pytest.mark.parametrize("step", ["stop", "frozen"])
def test_the_daemon_dies_in_the_middle(machine: Machine, step: str) -> None:
    victim, pid, before = start(machine)
    machine.inject(f"checkpoint.{step} die")
    assert machine.gcr("checkpoint", str(pid)).code != 0
    if step == "frozen":  # the driver had it already
        assert machine.until_state(str(pid), "suspended")
        assert machine.gcr("restore", str(pid)).code == 0
    assert victim.ask() == before
    assert machine.gcr("checkpoint", str(pid)).code == 0
    assert machine.gcr("restore", str(pid)).code == 0
    assert victim.ask() == before


@pytest.mark.parametrize("step", ["stop", "frozen"])
def test_a_fault_is_taken_back(machine: Machine, step: str) -> None:
    victim, pid, before = start(machine)
    machine.inject(f"checkpoint.{step} fail")
    failed = machine.gcr("checkpoint", str(pid))
    assert (failed.code, failed.body["error"]["state"]) == (4, "running"), failed.body
    assert victim.ask() == before
    assert machine.gcr("checkpoint", str(pid)).code == 0
    assert machine.gcr("restore", str(pid)).code == 0
    assert victim.ask() == before


def test_no_room_to_come_back_to(machine: Machine) -> None:
    victim, pid, before = start(machine)
    assert machine.ask("checkpoint", pid).code == 0
    taker = machine.stranger()
    assert int(taker.ask("everything")) > 0
    refused = machine.gcr("restore", str(pid))
    assert (refused.code, refused.body["error"]["code"], refused.body["error"]["state"]) == (3, "no_room", "suspended")
    taker.supervisor.kill()
    taker.supervisor.wait(10)
    assert machine.gcr("restore", str(pid)).code == 0
    assert victim.ask() == before


def test_it_ends_while_it_is_suspended(machine: Machine) -> None:
    victim, pid, _ = start(machine)
    assert machine.ask("checkpoint", pid).code == 0
    victim.supervisor.kill()
    victim.supervisor.wait(10)
    until(lambda: machine.job(str(pid)) is None or None, 10, "it is forgotten")


def test_what_the_outside_can_see_is_refused(machine: Machine) -> None:
    """NCCL's segments in /dev/shm are visible in its mappings. Exported memory is not: docs/limitations.md."""
    segment = "/dev/shm/nccl-gcr-test"
    script = (
        f"import sys, os, mmap; f = open({segment!r}, 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096);"
        f"sys.path.insert(0, {str(VICTIMS)!r}); import told_victim; told_victim.main()"
    )
    try:
        victim = machine.stranger(sys.executable, "-c", script)
        before = victim.ask()
        refused = machine.gcr("checkpoint", str(victim.supervisor.pid))
        assert (refused.code, refused.body["error"]["code"]) == (3, "unsupported_state"), refused.body
        assert "NCCL" in refused.body["error"]["message"]
        assert machine.ask("ps").body["jobs"] == []
        assert victim.ask() == before
    finally:
        Path(segment).unlink()


@pytest.mark.parametrize("who", ["gcr.control_helper", "gcr.daemon"])
def test_a_lock_that_outlives_its_caller_does_not_stop_the_program(machine: Machine, who: str) -> None:
    """The driver takes it a second later, when the checkpoint has long been taken back."""
    victim, pid, before = start(machine)
    rules = machine.simulated / "faults"
    rules.write_text(f"checkpoint.lock@{pid}:1:delay=1500\n")
    with machine.held_at("checkpoint.stop"):
        running = machine.command("checkpoint", str(pid))
        machine.wait_held()
        (pid_of_ours,) = machine.children(who)
    time.sleep(0.3)  # the driver has been asked
    kill(pid_of_ours)
    assert running.result(timeout=60).code != 0
    assert machine.gcr("ps").code == 0  # a daemon is there again, and learns of the process
    time.sleep(1.5)
    assert victim.ask() == before
    assert machine.gcr("checkpoint", str(pid)).code == 0
    assert machine.gcr("restore", str(pid)).code == 0
    assert victim.ask() == before
