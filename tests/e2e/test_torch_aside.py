"""Saves of gcr.torch under `gcr run`: the worker copies the tensors of a device, and the training copies none of them.

The tensors lie in simulated device memory, which a processor cannot touch: a training that read one would end.
"""

import importlib.util
import sys
from pathlib import Path

import pytest
from filed import Filed, back, stop
from machine import VICTIMS, Machine, Victim, kill, until

from gcr.api.jobevents import SaveDone, SaveFailed
from gcr.checkpoints.run import run_in
from gcr.rendezvous.following import Reader

MIB = 1 << 20

if not importlib.util.find_spec("torch"):
    pytest.skip("PyTorch is not installed", allow_module_level=True)


def training(machine: Machine) -> Victim:
    return machine.run("llm", sys.executable, str(VICTIMS / "torch_aside_victim.py"), str(machine.folder / "store"))


def events_of_saves(machine: Machine) -> list[tuple[type, str, int | None]]:
    with machine.connected() as client:
        found = [each for each in Reader().rest(client) if isinstance(each, SaveDone | SaveFailed)]
    return [(type(each), each.run, each.step) for each in found]


def hold(machine: Machine, step: str, name: str) -> Path:
    held = machine.folder / name
    machine.inject(f"save_spans.{step} hold {held}")
    return held


def test_a_training_saves_by_the_worker_and_says_so(machine: Machine) -> None:
    """Three saves in flight, one by the training itself, a swap; then a worker and a save helper die."""
    job = training(machine)
    held = []
    for step in (1, 2, 3):
        held.append(hold(machine, "reading", f"held{step}"))
        assert job.ask(f"save {step}") == "copy"
        until(held[-1].exists, 30, "the save comes to the step")
    for each in held:
        each.unlink()
    assert [job.ask("durable") for _ in held] == ["ok"] * 3
    until(lambda: job.ask("holds") == "0", 20, "the memory of the saves is free again")
    assert [job.ask(f"load {step}") for step in (1, 2, 3)] == ["right"] * 3
    assert job.ask("host 4").startswith("staged right a span lies in no device memory")

    machine.leave()
    machine.come_back()
    held = [hold(machine, "reading", "dies")]
    assert job.ask("save 5") == "copy"
    until(held[0].exists, 30, "the save comes to the step")
    kill(*machine.children("gcr.worker"))
    held[0].unlink()
    assert job.ask("durable").startswith("not_saved: run train: step 5 is not saved: ")
    saved = [(SaveDone, "train", step) for step in (1, 2, 3)]
    assert sorted(events_of_saves(machine), key=lambda event: event[2]) == [
        *saved,
        (SaveFailed, "train", 4),
        (SaveFailed, "train", 5),
    ]
    assert [job.ask("save 6"), job.ask("durable"), job.ask("load 6")] == ["copy", "ok", "right"]

    kill(int(job.ask("helper")))
    assert [job.ask("save 7"), job.ask("durable"), job.ask("load 7")] == ["copy", "ok", "right"]
    assert [job.ask("steps"), job.ask()] == ["[1, 2, 3, 4, 6, 7]", "right"]


def test_a_training_with_its_save_helper_is_stopped_and_comes_back(machine: Machine, criu: None) -> None:
    job = Filed(machine, program=("torch_aside_victim.py", str(machine.folder / "steps")))
    assert [job.ask("save 1"), job.ask("durable")] == ["copy ", "ok"]
    helper = job.ask("helper")
    stop(machine, "night", "--allow", "file-locks")
    back(machine, "night")
    assert [job.ask("helper"), job.ask("save 2"), job.ask("durable"), job.ask("load 2")] == [
        helper,
        "copy ",
        "ok",
        "right",
    ]


def test_an_optimizers_step_waits_until_its_tensors_are_read_in_place(machine: Machine) -> None:
    """Then a worker dies in a window, something else writes in one, and a device has room for a copy."""
    words = (sys.executable, str(VICTIMS / "torch_window_victim.py"), str(machine.folder / "store"))
    job = machine.run("llm", *words, "window")
    assert [job.ask("step"), job.ask()] == ["did not wait", "right"]
    held = hold(machine, "window", "held")
    assert job.ask("save 1") == "window it was asked for"
    until(held.exists, 30, "the save comes to the window")
    job.tell("step")
    assert job.silent()
    held.unlink()
    assert [job.hear(), job.ask("durable"), job.ask("load 1")] == ["waited", "ok", "right"]
    at = run_in(machine.folder / "store", "train").manifest(1).timings
    assert at["returned"] < at["safe"] <= at["drained"] < at["written"] and 0.05 < at["held"] < at["safe"]

    held = hold(machine, "window", "dies")
    assert job.ask("save 2").startswith("window")
    until(held.exists, 30, "the save comes to the window")
    kill(*machine.children("gcr.worker"))
    held.unlink()
    job.ask("step")
    assert job.ask("durable").startswith("not_saved: run train: step 2 is not saved: ")

    held = hold(machine, "window", "written")
    assert job.ask("save 3").startswith("window")
    until(held.exists, 30, "the save comes to the window")
    assert job.ask("writes") == "ok"
    held.unlink()
    assert "model.weight: something else than an optimizer's step wrote it" in job.ask("durable")
    assert job.ask("step")
    assert [job.ask("save 4").split()[0], job.ask("durable"), job.ask("load 4")] == ["window", "ok", "right"]
    job.ask("step")
    assert [job.ask("save 5").split()[0], job.ask("step"), job.ask("durable"), job.ask("load 5")][2:] == ["ok", "right"]
    assert job.ask() == "right"
