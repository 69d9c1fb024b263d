"""The ways back of a checkpoint that fails, when another program is quick or a process of gcr is dead."""

import subprocess
import time
from pathlib import Path

import pytest
from growth import descriptors
from machine import PATIENCE, Machine, Victim, kill, until

MIB = 1 << 20


def failing(machine: Machine, step: str) -> "tuple[subprocess.Popen[str], Path]":
    """A checkpoint that stands at the step, and the file that holds it there; then it fails."""
    held = machine.folder / "held"
    machine.inject(f"checkpoint.{step} hold {held}", f"checkpoint.{step} fail")
    running = machine.begin("checkpoint", "llm", "--timeout", "40")
    machine.wait_held()
    return running, held


@pytest.mark.parametrize("step", ["drained", "staged"])
def test_no_other_takes_the_room_that_a_rollback_needs(machine: Machine, step: str) -> None:
    """Another program grabs every free byte while the job is frozen."""
    job = machine.told("llm")
    job.ask("alloc 20 1000000")
    before = job.ask()
    taker = machine.stranger()
    running, held = failing(machine, step)
    until(lambda: machine_is_frozen(machine), 10, "the driver has checkpointed")
    time.sleep(0.2)  # a quick one may be faster than the ballast; this one is not
    assert int(taker.ask("everything")) > 0
    held.unlink()
    running.communicate(timeout=60)
    assert machine.until_state("llm", "running", "lost") == "running"
    assert job.ask() == before
    taker.supervisor.kill()
    taker.supervisor.wait(10)
    gone = machine.ask("checkpoint", "llm")
    assert (gone.code, gone.body.get("vram_after_bytes")) == (0, 0), gone.body
    assert machine.ask("restore", "llm").code == 0
    assert job.ask() == before


def machine_is_frozen(machine: Machine) -> bool:
    return machine.job("llm")["state"] in ("frozen", "drained")


@pytest.mark.parametrize("then", ["supervisor", "supervisor and worker later", "worker"])
def test_kept_handles_survive_the_death_of_either_keeper(machine: Machine, then: str) -> None:
    """After a rollback the program cannot export memory it imported: the keeper that is left hands descriptors on."""
    job = machine.told("llm")
    job.ask("alloc 20 1000000")
    before = job.ask()
    fails(machine, "staged")
    assert job.ask() == before
    if "supervisor" in then:
        kill(job.supervisor.pid)
    if then == "worker":
        kill(*machine.children("gcr.worker"))
    if then == "supervisor and worker later":
        fails(machine, "staged")
        kill(*machine.children("gcr.worker"))
    assert machine.until_state("llm", "running") == "running"
    for _ in range(2):
        gone = machine.ask("checkpoint", "llm")
        assert (gone.code, gone.body.get("vram_after_bytes")) == (0, 0), gone.body
        assert machine.ask("restore", "llm").code == 0
        assert job.ask() == before


def fails(machine: Machine, step: str) -> None:
    machine.inject(f"checkpoint.{step} fail")
    failed = machine.ask("checkpoint", "llm")
    assert failed.body["error"]["code"] == "injected_fault", failed.body


def test_a_worker_keeps_no_descriptor_of_what_was_let_go(machine: Machine) -> None:
    job = machine.told("llm")
    job.ask("alloc 20 1000000")
    cycle(machine, job)
    (worker,) = machine.children("gcr.worker")
    fails(machine, "quiesced")
    cycle(machine, job)
    most = fewest_descriptors(worker)
    for _ in range(2):
        fails(machine, "quiesced")
        cycle(machine, job)
    until(lambda: descriptors(worker) <= most, PATIENCE, f"it has {most} open and no more")


def fewest_descriptors(pid: int) -> int:
    """Over a while, in which what runs in the background opens and closes some."""
    seen = []
    for _ in range(10):
        seen.append(descriptors(pid))
        time.sleep(0.03)
    return min(seen)


def cycle(machine: Machine, job: Victim) -> None:
    before = job.ask()
    assert machine.ask("checkpoint", "llm").code == 0
    assert machine.ask("restore", "llm").code == 0
    assert job.ask() == before


@pytest.mark.parametrize("way", ["checkpoint", "restore"])
def test_a_decision_that_cannot_be_written_is_taken_back(machine: Machine, way: str) -> None:
    job = machine.told("llm")
    before = job.ask()
    if way == "restore":
        assert machine.ask("checkpoint", "llm").code == 0
    (journal,) = (machine.folder / "state").glob("gcr/daemons/*/journal")
    journal.rename(machine.folder / "elsewhere")
    journal.write_text("in its way")
    answer = machine.gcr(way, "llm")
    assert (answer.code, answer.body["error"]["code"]) == (4, "rolled_back"), answer.body
    journal.unlink()
    (machine.folder / "elsewhere").rename(journal)
    if way == "checkpoint":
        assert job.ask() == before
        assert machine.ask("checkpoint", "llm").code == 0
    assert machine.ask("restore", "llm").code == 0
    assert job.ask() == before


def test_a_rollback_waits_for_room_that_nothing_held(machine: Machine) -> None:
    """The ballast could not be had, and another program has the room: the driver would lose the process."""
    machine.memory = 96 * MIB
    job = machine.told("llm", f"alloc 1 {24 * MIB}")
    before = job.ask()
    (worker,) = until(lambda: machine.children("gcr.worker") or None, 20, "the worker has its context")
    faults, held = machine.simulated / "faults", machine.folder / "held"
    machine.inject(f"checkpoint.frozen hold {held}", "checkpoint.staged fail")
    faults.write_text(f"cuMemCreate@{worker}:*:fail=2\n")
    leaving = machine.command("checkpoint")
    machine.wait_held()
    taker = machine.stranger()
    assert int(taker.ask("everything")) > 0
    held.unlink()
    error = leaving.result(timeout=60).body["error"]
    assert (error["exit"], error["code"], error["state"]) == (5, "stands_still", "frozen"), error
    assert machine.gcr("recover").body["error"]["code"] == "no_room"
    assert machine.job("llm")["state"] == "frozen"
    job.tell()
    assert job.silent(0.3)
    taker.supervisor.kill()
    taker.supervisor.wait(10)
    faults.write_text("")
    until(lambda: machine.job("llm")["state"] == "running" or None, 30, "it runs again")
    assert job.hear() == before
    machine.comes_back(job, before)
