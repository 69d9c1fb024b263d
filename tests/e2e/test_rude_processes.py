"""Programs that become others, fork, end or lose their first thread, at any moment of a checkpoint."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable

import pytest
from machine import PATIENCE, VICTIMS, Machine, Victim, until
from refusals import refused
from rude import bare, program, says, swap
from worlds import NVIDIA, SLOW

from gcr.processes import descendants

TELLING = ("handed_over", "staged")  # the others are for the slow tests
STEPS = [pytest.param(s, marks=() if s in TELLING else SLOW) for s in NVIDIA.up_to_the_decision()]
CODE = 7
CONTEXT = 16 << 20  # of the worker, which keeps it


@pytest.fixture(scope="session")
def rude(tmp_path_factory: pytest.TempPathFactory) -> str:
    return program(tmp_path_factory.mktemp("rude"))


def waits(machine: Machine) -> bool:
    """Returns True if the job's process is a new one without anything on a device."""
    return [row["state"] for row in machine.job("llm")["processes"]] == ["suspended"]  # type: ignore[index]


def runs_anew(machine: Machine, job: Victim, fresh: str) -> None:
    """The program that came in its place is there, is what a fresh one is, and can be swapped like any other."""
    until(lambda: machine.job("llm")["state"] == "running" or None, PATIENCE, "what was before the exec is forgotten")
    assert machine.target("llm") == machine.job("llm")["pid"]
    for _ in range(2):
        assert job.ask() == fresh
        swap(machine)
    assert job.ask() == fresh


# ---- exec --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [False, True])
def test_a_program_that_runs_itself_again(machine: Machine, rude: str, swapped: bool) -> None:
    """Ids begin anew with it, and others hold what came back to its former self: nothing of that is taken for it."""
    job = machine.run("llm", rude)
    fresh = job.ask()
    job.ask("hold 5")
    if swapped:
        swap(machine)
    machine.ready(tell(job, "exec"))
    runs_anew(machine, job, fresh)


def tell(job: Victim, line: str) -> Victim:
    job.tell(line)
    return job


def test_a_program_that_runs_itself_again_while_it_is_suspended(machine: Machine, rude: str) -> None:
    job = machine.run("llm", rude)
    fresh = job.ask()
    job.ask("hold 5")
    machine.leave()
    machine.ready(tell(job, "exec"))
    runs_anew(machine, job, fresh)


@pytest.mark.parametrize("step", STEPS)
def test_a_program_that_runs_itself_again_in_a_checkpoint(machine: Machine, rude: str, step: str) -> None:
    job = machine.run("llm", rude)
    fresh = job.ask()
    with machine.held_at(f"checkpoint.{step}"):
        leaving = machine.command("checkpoint")
        machine.wait_held()
        job.tell("exec")
        until(lambda: waits(machine), PATIENCE, "its successor waits at its first call")
    answer = leaving.result(timeout=60)
    assert (answer.code, machine.job("llm")["state"]) == (0, "suspended"), answer.body
    assert machine.used() <= CONTEXT
    machine.come_back()
    machine.ready(job)
    runs_anew(machine, job, fresh)


def test_a_program_that_runs_itself_again_in_a_checkpoint_with_an_image(machine: Machine, rude: str) -> None:
    """Its successor has nothing yet that an image could show: that is said, and nothing keeps the name."""
    job = machine.run("llm", rude)
    fresh = job.ask()
    words = ("checkpoint", "llm", "--image", "warm", "--store", str(machine.folder / "store"), "--wait", "durable")
    with machine.held_at("checkpoint.handed_over"):
        leaving = machine.asking.submit(machine.gcr, *words)
        machine.wait_held()
        job.tell("exec")
        until(lambda: waits(machine), PATIENCE, "its successor waits at its first call")
    answer = leaving.result(timeout=60)
    assert "an image holds device memory" in refused(answer, "unsupported_state")
    machine.ready(job)
    assert (job.ask(), machine.job("llm")["state"]) == (fresh, "running")  # type: ignore[index]
    assert machine.gcr(*words).code == 0
    machine.come_back()
    assert job.ask() == fresh


@pytest.mark.parametrize("suspended", [False, True])
def test_a_program_that_becomes_one_without_a_device(machine: Machine, rude: str, suspended: bool) -> None:
    """Before or in a suspension: gcr keeps no memory and no state of it."""
    job = machine.run("llm", rude)
    swap(machine)
    if suspended:
        machine.leave()
    machine.ready(tell(job, "exec_shell"))
    assert job.ask("still here") == "still here"
    until(lambda: not machine.job("llm")["processes"] or None, PATIENCE, "it has no process on a device")
    assert "no process of this job uses a device" in refused(machine.gcr("checkpoint", "llm"), "not_a_gpu_process")


def test_a_program_that_drops_the_preload(machine: Machine, rude: str) -> None:
    job = machine.run("llm", rude)
    fresh = job.ask()
    machine.target("llm")  # it has been heard of
    machine.ready(tell(job, "exec_without_preload"))
    assert job.ask() == fresh
    until(lambda: not machine.job("llm")["processes"] or None, PATIENCE, "what was before the exec is forgotten")
    assert "libcuda.so loaded" in refused(machine.gcr("checkpoint", "llm"), "not_a_gpu_process")
    assert job.ask() == fresh


UNHEARD = f"""
import os, sys, time
sys.path.insert(0, {str(VICTIMS)!r})
from cuda.bindings import driver
from cuda_calls import check, primary_context
parent, context = os.getppid(), primary_context()
address = int(check(driver.cuMemAlloc(4 << 20)))
while os.getppid() == parent:
    time.sleep(0.05)
"""


HOLDERS = """
import pynvml as n
n.nvmlInit()
print(*(row.pid for row in n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0))))
"""


def test_a_child_that_drops_the_preload(machine: Machine) -> None:
    """Else half of the job would leave, without a word."""
    child = shlex.join(["env", "-u", "LD_PRELOAD", sys.executable, "-c", UNHEARD])
    program = shlex.join([sys.executable, str(VICTIMS / "told_victim.py")])
    job = machine.run("llm", "sh", "-c", f"{child} & exec {program}")
    assert job.ask("alloc 3 100000") == "ok"
    before = job.ask()
    (pid,) = until(lambda: children_with_memory(machine, job), PATIENCE, "the child has memory")
    said = refused(machine.gcr("checkpoint", "llm"), "unsupported_state")
    assert f"process {pid} of this job has " in said and "gcr hears nothing of it" in said
    assert machine.job("llm")["state"] == "running" and job.ask() == before  # type: ignore[index]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not children_with_memory(machine, job), PATIENCE, "it is gone")
    swap(machine)
    assert job.ask() == before


def children_with_memory(machine: Machine, job: Victim) -> list[int]:
    ours = descendants(machine.target(job.name))
    counted = machine.bare(sys.executable, "-c", HOLDERS).split()
    return [pid for pid in ours if str(pid) in counted]


# ---- threads and children that end -------------------------------------------------------------------------------


def test_a_program_whose_first_thread_has_ended(machine: Machine, rude: str) -> None:
    script = ["?", "leave_main", "?", "hold 3", "?"]
    expected = bare(machine, [rude], script)
    job = machine.run("llm", rude)
    said = says(job, script[:2])
    swap(machine, after=lambda: time.sleep(2.5))  # the daemon looks after its processes meanwhile
    said += says(job, script[2:])
    swap(machine)
    assert said == expected
    assert says(job, ["?"]) == expected[-1:]
    assert len(machine.targets("llm")) == 1


def test_a_program_that_becomes_a_daemon(machine: Machine, rude: str) -> None:
    """Its parent has seen it end; the job goes on with what is left of it."""
    job = machine.run("llm", rude)
    fresh = job.ask()
    first = machine.target("llm")
    machine.ready(tell(job, "daemonize"))
    assert job.supervisor.wait(10) == 0
    until(lambda: machine.targets("llm") != [first] or None, PATIENCE, "its successor has reported")
    for _ in range(2):
        assert job.ask() == fresh
        swap(machine)
    assert job.ask() == fresh


def test_a_thread_in_uninterruptible_sleep(machine: Machine, rude: str) -> None:
    """It sleeps over two swaps, and wakes up while the job is suspended a third time."""
    job = machine.run("llm", rude)
    fresh = job.ask()
    assert job.ask("sleep") == "ok"
    for _ in range(2):
        swap(machine, after=lambda: asleep(job))
        assert job.ask() == fresh
    asleep(job)
    machine.leave()
    assert job.ask("wake") == "ok"
    machine.come_back()
    assert (job.ask("asleep"), job.ask()) == ("awake", fresh)


def asleep(job: Victim) -> None:
    assert job.ask("asleep") == "asleep"


Moment = Callable[[Machine], None]


def while_it_runs(_machine: Machine) -> None:
    return


def while_it_is_suspended(machine: Machine) -> None:
    machine.leave()


@pytest.mark.parametrize("moment", [while_it_runs, while_it_is_suspended])
def test_exit_by_one_thread_while_others_are_in_the_driver(machine: Machine, rude: str, moment: Moment) -> None:
    job = machine.run("llm", rude)
    before = machine.used()
    assert job.ask("busy") == "ok"
    moment(machine)
    job.tell(f"end {CODE}")
    assert job.supervisor.wait(20) == CODE
    until(lambda: machine.job("llm") is None or None, PATIENCE, "it is forgotten")
    assert machine.used() <= before
    job = machine.run("llm", rude)
    swap(machine)


@pytest.mark.parametrize("step", STEPS)
def test_exit_by_one_thread_in_a_checkpoint(machine: Machine, rude: str, step: str) -> None:
    job = machine.run("llm", rude)
    job.ask("busy")
    with machine.held_at(f"checkpoint.{step}"):
        leaving = machine.command("checkpoint")
        machine.wait_held()
        job.tell(f"end {CODE}")
        assert job.supervisor.wait(20) == CODE
    assert leaving.result(timeout=60).code in (3, 4)
    until(lambda: machine.job("llm") is None or None, PATIENCE, "it is forgotten")
    machine.run("llm", rude)
    swap(machine)
