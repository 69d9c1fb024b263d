"""Jobs whose processes wait for each other on their devices: one standstill, at any instant (docs/architecture.md)."""

import sys
import time
from random import Random

import pytest
from machine import VICTIMS, Machine, Victim, until

from gcr.native import sim_dir
from gcr.testing.machine import violations

KERNELS = str(sim_dir("nvidia") / "kernels.so")
CYCLES = 8


def meeting(machine: Machine, ranks: int) -> Victim:
    job = machine.run("ranks", sys.executable, str(VICTIMS / "meet_victim.py"), str(ranks), KERNELS)
    go_on(job)
    return job


def epochs(job: Victim) -> list[int]:
    answer = job.ask()
    assert not answer.startswith("wrong"), answer
    return [int(epoch) for epoch in answer.split()]


def go_on(job: Victim) -> None:
    """Every rank has looked at its data once more, and all of it was right."""
    before = epochs(job)
    until(lambda: all(a > b for a, b in zip(epochs(job), before, strict=True)) or None, 30, "all ranks go on")


def swap_often(machine: Machine, ranks: int, cycles: int) -> None:
    job, rng = meeting(machine, ranks), Random(ranks)
    for _ in range(cycles):
        time.sleep(rng.random() * 0.05)
        gone = machine.gcr("checkpoint", "ranks")
        assert gone.code == 0, gone.body
        stopped = epochs(job)
        time.sleep(0.05)
        assert epochs(job) == stopped
        assert machine.gcr("restore", "ranks").code == 0
        go_on(job)


@pytest.mark.parametrize("queue", [1024, 3], ids=["ahead", "queue is full"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_meet_in_kernels_are_swapped_at_any_instant(machine: Machine, ranks: int, queue: int) -> None:
    """With a short queue their threads are inside a launch, which waits for room, most of the time."""
    machine.extra |= {"GCR_SIM_QUEUE": str(queue)}
    swap_often(machine, ranks, CYCLES)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_they_are_swapped_a_hundred_times(machine: Machine, ranks: int) -> None:
    swap_often(machine, ranks, 100)


def test_what_hardware_does_not_forgive_fails_a_test(machine: Machine) -> None:
    machine.told("llm")
    assert violations(machine.simulated) == ""
    (machine.simulated / "violations").write_text("process 1: memory was unmapped under running work\n")
    with pytest.raises(AssertionError, match="under running work"):
        machine.close()


def test_a_rank_that_stays_in_its_own_code_is_named_and_all_go_on(machine: Machine) -> None:
    machine.extra |= {"GCR_QUIESCE_S": "2"}
    job = meeting(machine, 3)
    assert not job.ask("hold 1").startswith("wrong")
    time.sleep(0.3)
    stopped = epochs(job)
    failed = machine.gcr("checkpoint", "ranks")
    assert (failed.code, failed.body["error"]["code"], failed.body["error"]["state"]) == (4, "stuck", "running")
    pids = [row["pid"] for row in machine.job("ranks")["processes"]]
    message = failed.body["error"]["message"]
    assert "waits in cross_device_reduce on stream 0x" in message
    assert any(f"process {pid} is in its own code" in message for pid in pids)
    assert epochs(job) == stopped
    assert not job.ask("go").startswith("wrong")
    go_on(job)
    assert machine.gcr("checkpoint", "ranks").code == 0
    assert machine.gcr("restore", "ranks").code == 0
    go_on(job)


def test_what_fails_after_the_standstill_is_taken_back_for_all_ranks(machine: Machine) -> None:
    job = meeting(machine, 3)
    for step in ("quiesced", "handed_over", "frozen", "drained"):
        machine.inject(f"checkpoint.{step} fail")
        failed = machine.gcr("checkpoint", "ranks")
        assert failed.code != 0
        assert failed.body["error"]["state"] == "running"
        go_on(job)
    assert machine.gcr("checkpoint", "ranks").code == 0
    assert machine.gcr("restore", "ranks").code == 0
    go_on(job)
