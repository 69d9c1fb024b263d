"""Waits for an image: callers that leave, deadlines, and a store that hangs. Other jobs go on meanwhile."""

import json
import os
import signal
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from machine import Answer, Machine, Victim, until
from worlds import slowly

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from imaging import bytes_of, write
from stored import away, back, durable, image_code, leave_running, store_of

from gcr.image.store.store import Store


def test_it_is_written_all_the_same_when_its_caller_leaves(machine: Machine) -> None:
    job, before = machine.start()
    machine.inject("image.commit hold " + str(machine.folder / "held"))
    words = ("checkpoint", "llm", "--image", "warm", "--wait", "durable", "--store", str(store_of(machine)))
    caller = machine.begin(*words)
    machine.wait_held()
    caller.send_signal(signal.SIGINT)
    out, _ = caller.communicate(timeout=30)
    error = json.loads(out)["error"]
    assert (caller.returncode, error["code"], error["state"]) == (130, "interrupted", "suspended")
    assert error["message"] == "interrupted; llm is suspended; image warm is still being written"
    assert machine.job("llm")["image"]["state"] == "writing"  # type: ignore[index]
    (machine.folder / "held").unlink()
    durable(machine, "warm")
    machine.come_back()
    assert job.ask() == before


@pytest.mark.parametrize("how", [(), slowly(("--leave-running",))])
def test_a_caller_that_waits_no_longer_is_told_that_it_is_still_being_written(
    machine: Machine, how: tuple[str, ...]
) -> None:
    job, before = machine.start()
    machine.leave()  # the worker is warm, and nothing else is waited for
    machine.come_back()
    held = machine.folder / "held"
    machine.inject(f"image.commit hold {held}")
    words = ("checkpoint", "llm", "--image", "warm", "--wait", "durable", "--store", str(store_of(machine)), *how)
    gone = machine.gcr(*words, "--timeout", "15")
    error = gone.body["error"]
    state = "running" if how else "suspended"
    assert (gone.code, error["code"], error["state"]) == (4, "not_durable", state), gone.body
    assert machine.settled() == state
    assert machine.job("llm")["image"]["state"] == "writing"  # type: ignore[index]
    held.unlink()
    durable(machine, "warm")
    machine.comes_back(job, before)


def hanging(machine: Machine, suffix: str) -> Path:
    """Has the next open of such a file hang until the returned file is gone."""
    held = machine.folder / "held"
    machine.inject(f"store.read{suffix} hold {held}")
    return held


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds that a store may keep silent."""
    monkeypatch.setenv("GCR_STORE_S", "10")
    return 10.0


def others_go_on(machine: Machine, other: Victim, before: str, meanwhile: "Future[Answer]") -> None:
    """While the first job's store is waited for the daemon answers, and another job leaves and comes back."""
    assert machine.ask("ps").code == machine.ask("status").code == 0
    assert machine.ask("checkpoint", "other").code == machine.ask("restore", "other").code == 0
    assert other.ask() == before
    assert not meanwhile.done()


@pytest.mark.parametrize("what", [slowly(".json"), ".pack"])
def test_a_store_that_hangs_holds_up_the_restore_from_it_alone(impatient: float, machine: Machine, what: str) -> None:
    other = machine.told("other", "alloc 2 4194304")
    job, before = machine.start()
    said = other.ask()
    away(machine, "warm")
    store = Store(store_of(machine))
    held = hanging(machine, what)
    going = machine.asking.submit(machine.ask, "restore", "llm", image="warm", store=str(store.path))
    machine.wait_held()
    others_go_on(machine, other, said, going)
    refused = machine.ask("restore", "llm")
    assert (refused.code, refused.body["error"]["code"]) == (3, "wrong_state"), "or it has waited"
    gone = going.result(30)
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (3, "store_unusable", "suspended"), gone.body
    assert "has not answered for 10 s" in error["message"]
    until(lambda: not machine.children("gcr.image_helper") or None, 10, "the helper ends")
    held.unlink()
    hanging(machine, ".json")
    assert image_code(machine, "warm") == (3, "store_unusable"), "also the command itself may look no longer than that"
    assert back(machine, "warm")["state"] == "running"
    assert job.ask() == before


def test_a_store_that_hangs_holds_up_the_checkpoint_to_it_alone(impatient: float, machine: Machine) -> None:
    other = machine.told("other", "alloc 2 4194304")
    job, before = machine.start()
    said = other.ask()
    store = Store(store_of(machine))
    write(store, "old", [bytes_of(1, 4096)])
    hanging(machine, ".pack")
    words = ("checkpoint", "llm", "--image", "warm", "--store", str(store.path))
    going = machine.asking.submit(machine.gcr, *words)
    machine.wait_held()
    others_go_on(machine, other, said, going)
    gone = going.result(30)
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (3, "store_unusable", "running"), gone.body
    assert job.ask() == before
    until(lambda: not machine.children("gcr.image_helper") or None, 10, "the helper ends")


@pytest.mark.parametrize("command", ["checkpoint", "restore"])
def test_a_caller_that_waits_for_a_store_that_hangs_can_be_interrupted(machine: Machine, command: str) -> None:
    job, before = machine.start()
    machine.leave()  # the worker is warm, and nothing else is waited for
    machine.come_back()
    store = Store(store_of(machine))
    if command == "restore":
        away(machine, "warm")
        held = hanging(machine, ".pack")
        caller = machine.begin("restore", "--image", "warm", "--store", str(store.path))
    else:
        write(store, "old", [bytes_of(1, 4096)])
        held = hanging(machine, ".pack")
        caller = machine.begin("checkpoint", "llm", "--image", "warm", "--store", str(store.path))
    machine.wait_held()
    began = time.monotonic()
    caller.send_signal(signal.SIGINT)
    out, _ = caller.communicate(timeout=30)
    assert (caller.returncode, time.monotonic() - began < 20) == (130, True), out
    until(lambda: machine.gcr("recover").code == 0 or None, 20, "no command changes the job any more")
    assert machine.settled() == ("suspended" if command == "restore" else "running")
    held.unlink()
    machine.comes_back(job, before)


@pytest.mark.parametrize("how", ["silence", "Ctrl-C"])
def test_a_restore_waits_no_longer_for_a_helper_that_is_stopped_than_for_its_disk(
    machine: Machine, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing at all then, not even that it is waiting."""
    monkeypatch.setenv("GCR_STORE_S", "3" if how == "silence" else "60")
    job, before = machine.start()
    away(machine, "warm")
    held = machine.folder / "held"
    machine.inject(f"image.read hold {held}")
    caller = machine.begin("restore", "--image", "warm", "--store", str(store_of(machine)))
    machine.wait_held()
    (helper,) = machine.children("gcr.image_helper")
    os.kill(helper, signal.SIGSTOP)
    if how == "Ctrl-C":
        caller.send_signal(signal.SIGINT)
    out, _ = caller.communicate(timeout=25)
    said = {"silence": (3, "store_unusable"), "Ctrl-C": (130, "interrupted")}
    error = json.loads(out)["error"]
    assert (caller.returncode, error["code"], error["state"]) == (*said[how], "suspended"), error
    held.unlink()
    os.kill(helper, signal.SIGCONT)
    until(lambda: not machine.children("gcr.image_helper") or None, 10, "the helper ends")
    assert back(machine, "warm")["state"] == "running"
    assert job.ask() == before


@pytest.mark.parametrize("how", ["silence", slowly("deadline"), "Ctrl-C"])
def test_a_store_that_hangs_where_the_parent_is_delays_no_checkpoint(
    impatient: float, machine: Machine, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how != "silence":
        monkeypatch.setenv("GCR_STORE_S", "60")
    job, before = machine.start()
    leave_running(machine, "old")
    held = hanging(machine, ".json")
    words = ("checkpoint", "llm", "--image", "warm", "--leave-running", "--store", str(store_of(machine)))
    caller = machine.begin(*words, *(("--timeout", "8") if how == "deadline" else ()))
    machine.wait_held()
    began = time.monotonic()
    if how == "Ctrl-C":
        caller.send_signal(signal.SIGINT)
    out, _ = caller.communicate(timeout=40)
    said = {"silence": (3, "store_unusable"), "deadline": (4, "deadline_passed"), "Ctrl-C": (130, "interrupted")}
    error = json.loads(out)["error"]
    assert (caller.returncode, error["code"], error["state"]) == (*said[how], "running")
    assert time.monotonic() - began < 25
    held.unlink()
    assert job.ask() == before
    leave_running(machine, "warm")
