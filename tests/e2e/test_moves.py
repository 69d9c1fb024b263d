"""Failures while a job comes back on other devices: it is suspended as before, and can come back on any."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
from machine import PATIENCE, Answer, Machine, kill, until
from two_devices import Job, bare, three_devices
from worlds import NVIDIA, SLOW, slowly

CONTROL_MS = 4000  # so long that a process that dies in it has a successor before it is over
STEPS = NVIDIA.before_it_runs()


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    made = three_devices(tmp_path, **getattr(request, "param", {}))
    yield made
    made.close()


def exchange(job: Job) -> dict[str, str]:
    first, second = job.devices
    return {first: second, second: first}


def begin(job: Job, **more: object) -> "Future[Answer]":
    """A restore with its devices exchanged that is not waited for."""
    return job.machine.asking.submit(job.machine.ask, "restore", "llm", **{"devices": exchange(job), **more})


def comes_back_either_way(job: Job, otherwise: bool) -> None:
    """Brings the job back on its devices, or on those that had failed; it leaves from there and returns."""
    first, second = job.devices
    job.come_back(*((second, first) if otherwise else ()))
    job.leave()
    job.come_back()


def test_a_failure_at_each_step_leaves_it_suspended(machine: Machine) -> None:
    job = Job.start(machine)
    for number, step in enumerate((*STEPS, *STEPS)):
        job.leave()
        machine.inject(f"restore.{step} fail")
        failed = machine.ask("restore", "llm", devices=exchange(job))
        assert failed.code == 4, (step, failed.body)
        assert machine.job("llm")["state"] == "suspended", step  # type: ignore[index]
        assert {mine for _, mine in job.counted().values()} == {0}, step
        comes_back_either_way(job, otherwise=number >= len(STEPS))


@SLOW
def test_failures_one_after_the_other_lead_nowhere_else(machine: Machine) -> None:
    """Its control state is on the third device, then on the second; what counts is where it is wanted last."""
    job = Job.start(machine)
    first, second = job.devices
    (third,) = set(job.counted()) - {first, second}
    job.leave()
    for moves in ({first: third}, {first: second, second: third}, {second: third}):
        machine.inject("restore.mapped fail")
        assert machine.ask("restore", "llm", devices=moves).code == 4
    kill(*machine.children("gcr.daemon"))
    machine.settled()
    machine.inject("restore.mapped fail")
    assert machine.ask("restore", "llm", devices={first: second, second: first}).code == 4
    job.come_back()
    job.leave()
    job.come_back(third, first)


def supervisor(job: Job) -> list[int]:
    return [job.victim.supervisor.pid]


def gcrs(module: str) -> Callable[[Job], list[int]]:
    return lambda job: job.machine.children(module)


OURS = {
    "gcrd": gcrs("gcr.daemon"),
    "workers": gcrs("gcr.worker"),
    "helper": gcrs("gcr.control_helper"),
    "supervisor": supervisor,
}


def strike(job: Job, who: str, step: str) -> None:
    machine = job.machine
    with machine.held_at(f"restore.{step}"):
        running = begin(job)
        machine.wait_held()
        condemned = OURS[who](job)
        assert condemned, f"no process to kill at {step}"
        kill(*condemned)
    running.result(timeout=60)


def settles(job: Job) -> None:
    """Wherever the death left it: it runs on the one pair or the other, or is suspended and can come back."""
    if job.machine.settled() == "suspended":
        comes_back_either_way(job, otherwise=True)
        return
    first, second = job.devices
    if job.where() != job.devices:
        job.devices = second, first
    job.is_whole()


@pytest.mark.parametrize(
    ("who", "steps"),
    [
        ("gcrd", [*STEPS, "decided", "opened_one"]),
        pytest.param("workers", STEPS, marks=SLOW),
        pytest.param("helper", STEPS, marks=SLOW),
        ("supervisor", ["refilled"]),
    ],
)
def test_a_process_dies(machine: Machine, who: str, steps: Sequence[str]) -> None:
    job = Job.start(machine)
    for step in steps:
        job.leave()
        try:
            strike(job, who, step)
            settles(job)
        except BaseException as error:
            error.add_note(f"{who} died at restore.{step}")
            raise
    job.leave()
    job.come_back()


def count_threads(pid: int) -> int:
    """The simulated driver has one more while it is asked for something."""
    return len([*Path(f"/proc/{pid}/task").iterdir()])


@pytest.mark.parametrize("machine", [{"GCR_SIM_CONTROL_MS": str(CONTROL_MS)}], indirect=True)
@pytest.mark.parametrize("who", ["gcrd", slowly("helper")])
@pytest.mark.parametrize("elsewhere", [True, slowly(False)])
def test_the_drivers_call_outlives_its_caller(machine: Machine, who: str, elsewhere: bool) -> None:
    """And says so in no way: it is checkpointed for the driver until it is back, there or on other devices."""
    job = Job.start(machine)
    job.leave()
    threads = count_threads(job.pid)
    with machine.held_at("restore.refilled"):
        running = begin(job, **({} if elsewhere else {"devices": {}}))
        machine.wait_held()
        until(lambda: count_threads(job.pid) > threads or None, PATIENCE, "the driver has begun")
        time.sleep(0.3)  # and has not only said in which state the process is
        kill(*OURS[who](job))
    assert running.result(timeout=60).code != 0
    assert machine.settled() == "suspended"
    time.sleep(CONTROL_MS / 1000)
    until(lambda: not any(mine for _, mine in job.counted().values()), 20, "the devices count nothing of it")
    job.come_back()


def test_a_driver_that_does_not_want_to(machine: Machine) -> None:
    """It is asked once; and the daemon that died since knows where the job still is."""
    job = Job.start(machine)
    job.leave()
    for again in (False, True):
        (machine.simulated / "faults").write_text(f"checkpoint.restore@{job.pid}:1:fail=1 # {again}\n")
        began = time.monotonic()
        refused = machine.ask("restore", "llm", devices=exchange(job))
        error = refused.body["error"]
        assert (refused.code, error["code"], error["state"]) == (4, "move_refused", "suspended"), refused.body
        assert time.monotonic() - began < 20, "it is not asked until some deadline"
        (machine.simulated / "faults").write_text("")
        kill(*machine.children("gcr.daemon"))
        machine.settled()
        comes_back_either_way(job, otherwise=again)
        job.leave()
    job.come_back()
    assert job.said == bare(machine, 10)


@pytest.mark.slow  # the agent is given ten seconds for each answer
def test_one_that_is_stopped_is_taken_back_when_it_goes_on(machine: Machine) -> None:
    """Its control state is on the other devices, and cannot be frozen there."""
    job = Job.start(machine)
    job.leave()
    with stopped(job, "back") as running:
        failed = running.result(timeout=120)
        assert (failed.code, failed.body["error"]["state"]) == (4, "restoring"), failed.body
    assert machine.settled() == "suspended"
    comes_back_either_way(job, otherwise=False)


@pytest.mark.slow
def test_one_that_is_stopped_once_it_was_decided_stays_where_it_came_to(machine: Machine) -> None:
    job = Job.start(machine)
    job.leave()
    with stopped(job, "decided") as running:
        unanswered = running.result(timeout=120)
        error = unanswered.body["error"]
        assert (unanswered.code, error["code"], error["state"]) == (4, "unanswered", "restoring"), unanswered.body
    first, second = job.devices
    job.devices = second, first
    assert machine.settled() == "running"
    job.is_whole()
    job.leave()
    job.come_back()


@contextmanager
def stopped(job: Job, step: str) -> Iterator["Future[Answer]"]:
    """Its devices exchanged, and the process stopped at the step; within the block the restore is under way."""
    with job.machine.held_at(f"restore.{step}"):
        running = begin(job)
        job.machine.wait_held()
        os.kill(job.pid, signal.SIGSTOP)
    try:
        yield running
    finally:
        os.kill(job.pid, signal.SIGCONT)


def test_the_caller_leaves(machine: Machine) -> None:
    job = Job.start(machine)
    job.leave()
    with machine.held_at("restore.room"):
        running = machine.begin("restore", "llm", "--device", "0=1", "--device", "1=0")
        machine.wait_held()
        machine.leaves(running.kill)
    until(lambda: machine.ask("restore", "llm").code == 0 or None, 20, "it is taken back, and may come back")
    job.is_whole()
