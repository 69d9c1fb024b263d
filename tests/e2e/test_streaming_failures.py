"""Checkpoints straight to an image that fail: everything is taken back, and no image is left."""

import json
import os
import resource
import signal
from collections.abc import Callable

import pytest
from little_room import MIB, MIDDLE, RING, comes_back, large, nothing_is_left, room, words
from machine import Machine, kill, until
from stored import store_of
from worlds import AMD, NVIDIA, at, slowly

from gcr.image.store.store import Store

STEPS = ["prepared", "handed_over", "filled_0", "filled_7", "drained", "staged", "durable"]


@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_a_failure_at_any_step_takes_everything_back(machine: Machine) -> None:
    job, before = large(machine)
    for step in STEPS:
        machine.inject(f"checkpoint.{step} fail")
        gone = machine.gcr(*words(machine))
        assert (gone.code, gone.body["error"]["code"]) == (4, "injected_fault"), (step, gone.body)
        assert job.ask() == before
        nothing_is_left(machine)
    assert machine.gcr(*words(machine)).code == 0
    comes_back(machine, job, before)


@pytest.mark.parametrize("step", [*map(slowly, ("image.take", "image.write", "image.published")), "image.commit"])
def test_a_helper_that_dies_leaves_no_image(machine: Machine, step: str) -> None:
    job, before = large(machine)
    machine.inject(f"{step} die")
    gone = machine.gcr(*words(machine))
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (4, "image_failed", "running"), gone.body
    assert job.ask() == before
    assert Store(store_of(machine)).images.names() == []
    assert machine.gcr(*words(machine)).code == 0  # what the dead one has claimed is free
    comes_back(machine, job, before)


def test_an_image_that_the_record_names_is_not_taken_away_again(machine: Machine) -> None:
    job, before = large(machine)
    machine.inject("checkpoint.decided fail")
    assert machine.gcr(*words(machine)).code == 4
    assert Store(store_of(machine)).images.names() == ["warm"]
    machine.until_state("llm", "running")
    kept = machine.job("llm")
    assert kept and kept["only_in"] is None
    assert job.ask() == before


def test_a_disk_that_fills_up_takes_everything_back(machine: Machine) -> None:
    """The largest file that the helper may write stands for it."""
    job, before = large(machine)
    limits = resource.prlimit(machine.daemon(), resource.RLIMIT_FSIZE)
    resource.prlimit(machine.daemon(), resource.RLIMIT_FSIZE, (20 * MIB, limits[1]))
    gone = machine.gcr(*words(machine))
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (4, "image_failed", "running"), gone.body
    assert "EFBIG" in error["message"]
    assert job.ask() == before
    nothing_is_left(machine)
    found = machine.job("llm")
    assert found and found["image"]["state"] == "failed"
    resource.prlimit(machine.daemon(), resource.RLIMIT_FSIZE, limits)
    assert machine.gcr(*words(machine)).code == 0
    comes_back(machine, job, before)


@pytest.mark.parametrize("who", ["gcr.worker", "gcr.image_helper", slowly("gcr.control_helper")])
def test_a_death_in_the_middle_takes_everything_back(machine: Machine, who: str) -> None:
    job, before = large(machine)
    strike(machine, lambda: machine.children(who), MIDDLE)
    machine.until_state("llm", "running", "suspended")
    if machine.job("llm")["state"] == "running":  # type: ignore[index]
        assert job.ask() == before
        assert Store(store_of(machine)).images.names() == []
        assert machine.gcr(*words(machine)).code == 0
    comes_back(machine, job, before)


@pytest.mark.parametrize(
    "step", [MIDDLE, "checkpoint.decided", slowly("checkpoint.durable"), slowly("checkpoint.committed_one")]
)
def test_the_daemon_dies(machine: Machine, step: str) -> None:
    """Before the decision the job runs on, and an image that is durable by then is of no use to it."""
    job, before = large(machine)
    strike(machine, lambda: machine.children("gcr.daemon"), step)
    state = machine.settled()
    decided = step in ("checkpoint.decided", "checkpoint.committed_one")
    assert state == ("suspended" if decided else "running")
    if decided:
        kept = machine.job("llm")
        assert kept and kept["only_in"] == {"image": "warm", "store": str(store_of(machine))}
        comes_back(machine, job, before)
        return
    assert job.ask() == before
    store = str(store_of(machine))
    if step == "checkpoint.durable":
        assert machine.gcr("restore", "--image", "warm", "--store", store).body["error"]["code"] == "wrong_state"
        room(machine, 256 * MIB)
        machine.leave()
        assert machine.gcr("restore", "--image", "warm", "--store", store).body["error"]["code"] == "wrong_image"
        machine.come_back()
        assert machine.gcr("rm", "warm", "--store", store).code == 0
    room(machine, RING)
    assert machine.gcr(*words(machine)).code == 0
    comes_back(machine, job, before)


def strike(machine: Machine, who: Callable[[], list[int]], step: str) -> None:
    with machine.held_at(step):
        running = machine.begin(*words(machine))
        machine.wait_held()
        condemned = who()
        assert condemned
        kill(*condemned)
    running.communicate(timeout=60)


def test_the_supervisor_dies_in_the_middle(machine: Machine) -> None:
    job, before = large(machine)
    strike(machine, lambda: [job.supervisor.pid], MIDDLE)
    if machine.until_state("llm", "running", "suspended") == "suspended":
        comes_back(machine, job, before)
    assert job.ask() == before


def test_daemon_and_supervisor_die_before_the_decision(machine: Machine) -> None:
    """The image alone has the bytes, and the daemon had left word of it: the job is suspended there."""
    job, before = large(machine)
    strike(machine, lambda: [job.supervisor.pid, *machine.children("gcr.daemon")], "checkpoint.durable")
    store = str(store_of(machine))
    assert machine.gcr("rm", "warm", "--store", store).body["error"]["code"] == "image_needed"
    machine.gcr("recover")
    machine.until_state("llm", "suspended")
    kept = machine.job("llm")
    assert kept and kept["only_in"] == {"image": "warm", "store": store}
    comes_back(machine, job, before)


def test_daemon_supervisor_and_image_are_gone_before_the_decision(machine: Machine) -> None:
    """No process has the memory any more, and no image: that is said."""
    job, _ = large(machine)

    def condemned() -> list[int]:
        (store_of(machine) / "images" / "warm.json").unlink()
        return [job.supervisor.pid, *machine.children("gcr.daemon")]

    strike(machine, condemned, "checkpoint.durable")
    machine.gcr("recover")
    machine.until_state("llm", "lost")
    assert "not decided" in machine.logs()["gcrd.log"]


def test_the_target_dies_in_the_middle(machine: Machine) -> None:
    job, _ = large(machine)
    strike(machine, lambda: machine.targets("llm"), MIDDLE)
    assert job.supervisor.wait(timeout=20) == 128 + signal.SIGKILL
    until(lambda: machine.job("llm") is None or None, 20, "the job is forgotten")
    nothing_is_left(machine)


def test_a_caller_that_leaves_in_the_middle_has_everything_taken_back(machine: Machine) -> None:
    job, before = large(machine)
    with machine.held_at(MIDDLE):
        running = machine.begin(*words(machine))
        machine.wait_held()
        machine.leaves(lambda: running.send_signal(signal.SIGINT))
    assert running.wait(timeout=30) == 130
    machine.until_state("llm", "running")
    assert job.ask() == before
    nothing_is_left(machine)


def test_the_callers_deadline_counts_and_no_other(machine: Machine) -> None:
    machine.extra |= {"GCR_DRAIN_S": "0.5"}
    job, before = large(machine)
    late = machine.gcr(*words(machine, "--max-rate", "8M", "--timeout", "3"))
    assert (late.code, late.body["error"]["code"]) == (4, "deadline_passed"), late.body
    assert job.ask() == before
    nothing_is_left(machine)
    slow = machine.gcr(*words(machine, "--max-rate", "16M"))
    assert slow.code == 0 and slow.body["drain_s"] > 1.5
    comes_back(machine, job, before)


def test_a_helper_that_is_stopped_keeps_no_job_stopped(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller has named a deadline, and the disk may take its time; this one is silent."""
    monkeypatch.setenv("GCR_STORE_S", "3")
    job, before = large(machine)
    held = machine.folder / "held"
    machine.inject(f"image.take hold {held}")
    caller = machine.begin(*words(machine))
    machine.wait_held()
    (helper,) = machine.children("gcr.image_helper")
    os.kill(helper, signal.SIGSTOP)
    out, _ = caller.communicate(timeout=25)
    error = json.loads(out)["error"]
    assert (caller.returncode, error["code"], error["state"]) == (4, "image_failed", "running"), error
    assert "has not answered for 3 s" in error["message"]
    assert job.ask() == before
    held.unlink()
    os.kill(helper, signal.SIGCONT)
    nothing_is_left(machine)
    assert machine.gcr(*words(machine)).body["streamed"]
    comes_back(machine, job, before)
