"""A process of gcr's is stopped, by a signal or with its cgroup, and stays so: it says nothing, and is not dead either.

No caller may wait for it longer than for a dead process and a deadline; least of all a program.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from machine import Machine, Victim, kill, until
from worlds import slowly

LARGE = "alloc 8 4194304"


@pytest.fixture
def machine(machine: Machine) -> Machine:
    machine.extra |= {"GCR_CONTROL_S": "3", "GCR_DRAIN_S": "5", "GCR_WORKER_START_S": "10"}
    return machine


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def stop_at(machine: Machine, step: str, pid: int) -> None:
    """Stops a process in the middle of a checkpoint, which then fails."""
    with machine.held_at(step):
        going = machine.command("checkpoint")
        machine.wait_held()
        os.kill(pid, signal.SIGSTOP)
        until(lambda: _stands(pid) or None, 10, "each of its threads has stopped")
    answer = going.result(90)
    assert answer.code == 4, answer.body


def _stands(pid: int) -> bool:
    """Tells whether each thread has stopped: one that is on its way may still answer."""
    states = [
        task.joinpath("stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    return set(states) == {"T"}


def runs_on(machine: Machine, job: Victim, before: str, patience: float = 60) -> None:
    machine.until_state("llm", "running", patience=patience)
    assert job.ask() == before


@pytest.mark.parametrize("step", ["drained", slowly("handed_over")])
def test_a_supervisor_has_no_process_s_only_way_back(machine: Machine, step: str) -> None:
    """Its escrow is out of reach, and then gone: the workers and the daemon have the same."""
    job = machine.told("llm", LARGE)
    before = job.ask()
    stop_at(machine, f"checkpoint.{step}", job.supervisor.pid)
    runs_on(machine, job, before)
    kill(job.supervisor.pid)
    runs_on(machine, job, before)
    machine.comes_back(job, before)


def test_a_control_helper_is_replaced(machine: Machine) -> None:
    job = machine.told("llm", LARGE)
    before = job.ask()
    machine.leave()
    machine.come_back()
    (helper,) = machine.children("gcr.control_helper")
    stop_at(machine, "checkpoint.handed_over", helper)
    runs_on(machine, job, before)
    machine.comes_back(job, before)
    assert helper not in machine.children("gcr.control_helper"), "it would do what it was told once it goes on"


@pytest.mark.parametrize("step", [slowly("handed_over"), slowly("drained")])
def test_a_worker_is_replaced(machine: Machine, step: str) -> None:
    job = machine.told("llm", LARGE)
    before = job.ask()
    (worker,) = until(lambda: machine.children("gcr.worker"), 20, "there is a worker")
    stop_at(machine, f"checkpoint.{step}", worker)
    runs_on(machine, job, before)
    machine.comes_back(job, before)
    assert worker not in machine.children("gcr.worker")


def test_a_suspended_job_comes_back_without_the_worker_that_has_its_copy(machine: Machine) -> None:
    job = machine.told("llm", LARGE)
    before = job.ask()
    machine.leave()
    (worker,) = machine.children("gcr.worker")
    os.kill(worker, signal.SIGSTOP)
    first = machine.ask("restore", "llm")  # by which it is found out
    if first.code:
        assert (first.code, first.body["error"]["state"]) == (4, "suspended"), first.body
        machine.come_back()
    assert job.ask() == before
    assert worker not in machine.children("gcr.worker")


def test_a_restore_goes_on_without_a_stopped_supervisor_and_a_checkpoint_names_it(machine: Machine) -> None:
    job = machine.told("llm", LARGE)
    before, supervisor = job.ask(), job.supervisor.pid
    machine.leave()
    with stopped(supervisor):
        machine.come_back()
        assert job.ask() == before
        refused = machine.ask("checkpoint", "llm").body["error"]
        assert f"supervisor, process {supervisor}, is stopped" in refused["message"]
        assert (refused["state"], f"kill -CONT {supervisor}" in refused["hint"]) == ("running", True), refused
        assert job.ask() == before
    machine.comes_back(job, before)


def test_a_helper_that_writes_behind_releases_its_memory_in_the_end(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCR_STORE_S", "2")
    job = machine.told("llm", LARGE)
    before, held = job.ask(), machine.folder / "held"
    machine.inject(f"image.write hold {held}")
    assert machine.gcr("checkpoint", "llm", "--image", "warm", "--store", str(machine.folder / "store")).code == 0
    machine.wait_held()
    (helper,) = machine.children("gcr.image_helper")
    os.kill(helper, signal.SIGSTOP)
    until(lambda: not machine.children("gcr.image_helper") or None, 20, "it is ended")
    image = until(lambda: machine.job("llm")["image"]["error"] and machine.job("llm")["image"], 10, "it is said")  # type: ignore[index]
    assert (image["name"], image["state"]) == ("warm", "failed")
    machine.come_back()
    assert job.ask() == before
    machine.leave()
    machine.come_back()
    assert job.ask() == before


def test_ps_waits_for_no_program_that_is_stopped(machine: Machine) -> None:
    for name in ("one", "two", "three"):
        machine.told(name, "alloc 1 4194304")
    with stopped(*(machine.target(name) for name in ("one", "two"))):
        began = time.monotonic()
        assert [job["job"] for job in machine.gcr("ps").body["jobs"]] == ["one", "two", "three"]
        assert time.monotonic() - began < 8
