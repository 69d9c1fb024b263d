"""Causes of a hanging stop, through all of gcr: work that ends only if a parked thread goes on (docs/design.md)."""

import subprocess
import time
from collections.abc import Sequence

import pytest
from machine import Machine, Victim, until

from gcr.native import sim_dir

TRIES = 4  # where the gate should have closed by then
KERNELS = sim_dir("nvidia") / "kernels.so"


def warm(machine: Machine) -> Victim:
    """A job once swapped, so that the start of a worker does not count against a deadline."""
    job = machine.told("llm")
    assert machine.gcr("checkpoint", "llm").code == 0
    assert machine.gcr("restore", "llm").code == 0
    return job


def stopping(machine: Machine, *options: str) -> "subprocess.Popen[str]":
    """Returns a checkpoint with its gate closed just now."""
    running = machine.begin("checkpoint", "llm", *options)
    until(lambda: machine.job("llm")["state"] == "prepared" or None, 10, "it is prepared")
    time.sleep(0.5)
    assert running.poll() is None
    return running


def ends_well(machine: Machine, job: Victim, running: "subprocess.Popen[str]") -> None:
    out, _ = running.communicate(timeout=30)
    assert running.returncode == 0, out
    assert machine.gcr("restore", "llm").code == 0
    until(lambda: job.ask("done") == "done" or None, 10, "its thread and its stream end")


def test_a_persistent_kernel_is_named_and_the_program_goes_on(machine: Machine) -> None:
    job = warm(machine)
    before = job.ask()
    stream = job.ask(f"persistent {KERNELS}")
    began = time.monotonic()
    failed = machine.gcr("checkpoint", "llm", "--timeout", "5")
    assert (failed.code, failed.body["error"]["code"]) == (4, "stuck")
    assert stream in failed.body["error"]["message"]
    assert failed.body["error"]["state"] == "running"
    assert time.monotonic() - began < 25
    assert job.ask() == before

    job.ask("release")
    until(lambda: job.ask("done") == "done" or None, 10, "the kernel ends")
    assert machine.gcr("checkpoint", "llm").code == 0
    assert machine.gcr("restore", "llm").code == 0
    assert job.ask() == before


@pytest.mark.parametrize(
    ("waits", "freed_by"),
    [
        (["host_callback"], "open_door"),
        (["wait_value"], "release"),
        ([f"persistent {KERNELS}"], "release"),
        (["host_callback", "wait_value"], "open_door_and_release"),
    ],
    ids=["host callback", "stream wait", "spinning kernel", "both"],
)
def test_work_that_only_a_parked_thread_can_end(machine: Machine, waits: Sequence[str], freed_by: str) -> None:
    job = machine.told("llm")
    before = job.ask().partition(", ")[2]
    for told in waits:
        assert not job.ask(told).startswith("wrong")
    running = stopping(machine, "--timeout", "20")
    assert job.ask(freed_by) == "ok"
    ends_well(machine, job, running)
    if freed_by == "release":
        assert job.ask().partition(", ")[2] == before


def test_without_pulses_that_is_stuck(machine: Machine) -> None:
    """The same program and no pulses: what the test above shows is due to them."""
    machine.extra["GCR_PULSE_MS"] = "0"
    job = warm(machine)
    for _ in range(TRIES):
        job.ask("host_callback")
        running = stopping(machine, "--timeout", "6")
        job.ask("open_door")
        out, _ = running.communicate(timeout=30)
        if running.returncode:
            break
        assert machine.gcr("restore", "llm").code == 0  # the gate was open still
        until(lambda: job.ask("done") == "done" or None, 10, "it ended")
    assert (running.returncode, '"stuck"' in out) == (4, True), out
    until(lambda: job.ask("done") == "done" or None, 10, "the open gate lets it end")
