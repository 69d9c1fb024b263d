"""Device memory that a program has gcr save, while it runs on (gcr.checkpoints.aside).

The program (aside_victim.py) writes other bytes as soon as it may, and compares what was saved with the former ones.
"""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from machine import VICTIMS, Machine, Victim, kill, until
from refusals import refused
from rings import ring
from worlds import AMD, NVIDIA, at

from gcr.api.jobevents import SaveDone, SaveFailed
from gcr.errors import NoSuchJob
from gcr.processes import is_stopped
from gcr.rendezvous.following import Reader

MIB = 1 << 20
ODD = 3 << 10  # bytes of a buffer before its span


def program(machine: Machine, *more: str) -> Victim:
    return machine.run("llm", sys.executable, str(VICTIMS / "aside_victim.py"), "--vendor", machine.vendor, *more)


def hold(machine: Machine, step: str, name: str = "held") -> Path:
    """Has the next save wait at a step until the file is removed."""
    held = machine.folder / name
    machine.inject(f"save_spans.{step} hold {held}")
    return held


def comes(held: Path) -> None:
    until(lambda: held.exists() or None, 30, "the save comes to the step")


def begun(machine: Machine, job: Victim, name: str) -> Path:
    """Returns the hold of a save of which nothing was read to the host yet; the program has overwritten all."""
    held = hold(machine, "reading", name)
    assert job.ask("save") == "ok"
    comes(held)
    return held


@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_saves_in_flight_have_each_the_bytes_of_its_own_call(machine: Machine) -> None:
    machine.memory = 256 * MIB
    job = program(machine)
    rest = machine.used()
    held = [begun(machine, job, f"held{number}") for number in range(3)]
    assert machine.job("llm")["state"] == "running"  # type: ignore[index]
    image = machine.ask("checkpoint", "llm", leave_running=True, image="beside", store=str(machine.folder / "store"))
    assert image.code == 0, image.body
    for each in reversed(held):
        each.unlink()
    assert [job.ask("saved") for _ in held] == ["right"] * 3
    assert job.ask() == "4 right"
    assert [job.ask(line) for line in ("save", "drained") * 2] == ["ok"] * 4
    assert [job.ask("saved"), job.ask("saved")] == ["right"] * 2, "the second lies where the first did"
    until(lambda: machine.used() <= rest + 16 * MIB or None, 20, "no more is left than the worker's context")


def test_the_copy_waits_for_the_word_that_the_devices_work_has_ended(machine: Machine) -> None:
    job = program(machine)
    held, safe = machine.folder / "held", machine.folder / "safe"
    machine.inject(f"save_spans.prepared hold {held}", f"save_spans.safe hold {safe}")
    assert job.ask("late") == "asked"
    comes(held)
    held.unlink()
    assert job.silent() and not safe.exists()
    job.tell("go on")
    comes(safe)
    safe.unlink()
    assert job.hear() == "ok"
    assert job.ask("saved") == "right"
    assert [job.ask("gives_up"), job.ask("save"), job.ask("saved")] == ["ok", "ok", "right"]
    assert job.ask("late") == "asked"
    kill(machine.target("llm"))
    until(lambda: machine.job("llm") is None or None, 20, "a program that ends in a save is forgotten")


def test_a_command_waits_for_a_save_and_the_next_save_is_of_memory_that_came_back(machine: Machine) -> None:
    job = program(machine)
    held = begun(machine, job, "held")
    gone = machine.command("checkpoint")
    answers: list[str] = []
    until(lambda: answers.append(job.ask("save")) or answers[-1] != "ok" or None, 20, "the command waits")
    assert answers[-1].startswith("wrong_state"), answers
    assert not gone.done()
    held.unlink()
    assert [job.ask("saved") for _ in answers] == ["right"] * len(answers)  # the held one, and those before the command
    assert gone.result(60).body["state"] == "suspended"
    machine.come_back()
    assert job.ask().endswith("right")
    assert [job.ask("save"), job.ask("saved")] == ["ok", "right"]
    machine.leave()
    machine.come_back()
    assert job.ask().endswith("right")


def test_between_saves_what_is_freed_is_free_and_what_is_new_is_saved(machine: Machine) -> None:
    """The exports of a save stand for the next one; a worker that dies, and a command of the job, end them."""
    job = program(machine)
    rest = machine.used()
    for name in ("", "gcr.worker"):
        again(job)
        assert machine.job("llm")["state"] == "running"  # type: ignore[index]
        before = until(lambda: used if (used := machine.used()) <= rest + 16 * MIB else None, 20, "the copy is gone")
        assert [job.ask("frees 4"), machine.used()] == ["ok", before - 4 * MIB], "no worker holds it"
        assert [job.ask("adds"), job.ask("save"), job.ask("saved")] == ["ok", "ok", "right"]
        if name:
            kill(*machine.children(name))
            assert [job.ask("frees 4"), job.ask("adds")] == ["ok", "ok"]
    again(job)
    target = machine.target("llm")
    os.kill(target, signal.SIGSTOP)
    until(lambda: is_stopped(target) or None, 30, "it is stopped")
    assert f"process {target} is stopped" in refused(machine.gcr("checkpoint", "llm"), "wrong_state")
    os.kill(target, signal.SIGCONT)
    again(job)
    machine.leave()
    machine.come_back()
    assert job.ask().endswith("right")
    again(job)
    kill(target)
    until(lambda: machine.used() < rest - 12 * MIB or None, 20, "nothing is left of the program's memory")


def test_what_cannot_be_saved_is_refused_and_costs_nothing(machine: Machine) -> None:
    """What lies in no memory of the process, what a process of no job asks for, and what finds no room."""
    machine.memory = 64 * MIB
    job = program(machine)
    assert job.ask("beyond").startswith("unsupported_state: a span lies in no device memory")
    assert job.ask("elsewhere 0x1000").startswith("unsupported_state")
    with machine.connected() as client, pytest.raises(NoSuchJob):
        client.request("save_spans", {})
    assert job.ask("save").startswith("no_room")
    assert job.ask() == "1 right"
    machine.leave()
    machine.come_back()
    assert job.ask() == "1 right"


def test_each_save_is_an_event_and_so_is_one_that_is_refused(machine: Machine) -> None:
    job = program(machine)
    assert [job.ask("save"), job.ask("saved"), job.ask("beyond").partition(":")[0]] == [
        "ok",
        "right",
        "unsupported_state",
    ]
    with machine.connected() as client:
        done, refused = [each for each in Reader().rest(client) if isinstance(each, SaveDone | SaveFailed)]
    pid = machine.target("llm")
    assert isinstance(done, SaveDone) and isinstance(refused, SaveFailed)
    assert (done.job, done.pid, refused.job, refused.pid) == ("llm", pid, "llm", pid)
    assert done.bytes >= MIB and 0 < done.aside_s <= done.safe_s <= done.took_s
    assert (refused.code, refused.exit, refused.took_s > 0) == ("unsupported_state", 3, True)


def test_ranks_save_at_once_and_none_saves_memory_of_another(machine: Machine) -> None:
    machine.memory = 256 * MIB
    job = ring(machine)
    assert [job.ask("aside"), job.ask()] == ["ok", "2"]
    machine.leave()
    machine.come_back()
    assert [job.ask("aside"), job.ask()] == ["ok", "2"]


def test_a_program_that_needs_the_room_gets_it_and_the_save_says_so(machine: Machine) -> None:
    machine.memory = 96 * MIB
    job = program(machine)
    held = begun(machine, job, "held")
    while (free := machine.memory - machine.used()) > 8 * MIB:
        assert job.ask(f"more {free // 2}") == "ok"
    assert job.ask(f"more {16 * MIB}") == "ok"
    held.unlink()
    assert job.ask("saved").startswith("image_failed")
    assert job.ask() == "2 right"


def test_spans_are_read_in_place_until_the_program_may_write(machine: Machine) -> None:
    """Without room for a copy of all; with room for some; and with bytes that are written too early."""
    machine.memory = TIGHT
    job = program(machine)
    assert job.ask("save").startswith("no_room")
    held = hold(machine, "window")
    assert job.ask("window") == str(4 * (3 * MIB - ODD)), "no byte is copied aside that may be read in place"
    comes(held)
    assert (job.ask("open"), machine.job("llm")["state"]) == ("yes", "prepared")  # type: ignore[index]
    held.unlink()
    assert [job.ask("ends"), job.ask("saved"), job.ask()] == ["ok", "right", "2 right"]

    held = hold(machine, "window")
    in_place = int(job.ask("window room"))
    assert 0 < in_place < 4 * (3 * MIB - ODD), "some are copied aside"
    comes(held)
    held.unlink()
    assert [job.ask("ends"), job.ask("saved"), job.ask()] == ["ok", "right", "3 right"]

    held = hold(machine, "window")
    job.ask("window")
    comes(held)
    assert job.ask("early") == "ok"
    held.unlink()
    assert [job.ask("saved"), job.ask()] == ["wrong", "4 right"]
    machine.leave()
    machine.come_back()
    assert [job.ask("window"), job.ask("ends"), job.ask("saved")][1:] == ["ok", "right"]


@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_a_save_that_cannot_be_read_in_place_costs_nothing_else(machine: Machine) -> None:
    """The program frees memory before, or gives the save up."""
    job = program(machine)
    assert [job.ask("window"), job.ask("ends"), job.ask("saved")][1:] == ["ok", "right"]
    held = hold(machine, "window")
    job.ask("window")
    comes(held)
    assert job.ask("frees 3") == "ok"
    held.unlink()
    assert job.ask("ends").startswith("rolled_back")
    assert job.ask("saved").startswith("rolled_back")
    again(job)
    held = hold(machine, "window", "quits")
    job.ask("window")
    comes(held)
    assert [job.ask("quits"), job.ask("ends").split(":")[0]] == ["ok", "peer_gone"]
    held.unlink()
    assert job.ask("saved").startswith("peer_gone")
    again(job)
    assert job.ask().endswith("right")
    assert machine.settled() == "running"


STEPS = ("prepared", "safe", "reading", "drained")
TIGHT = 68 * MIB  # of a device: no room for a copy of all buffers, but for that of one


@pytest.mark.parametrize("who", ["gcr.worker", pytest.param("gcr.daemon", marks=pytest.mark.slow)])
def test_the_training_goes_on_whoever_dies(machine: Machine, who: str) -> None:
    """Before the copy is made its death is the answer; afterwards the save fails, and no wait for it goes on."""
    job = program(machine)
    for number, step in enumerate(STEPS):
        if step == "safe":
            dies_in_window(machine, job, who)
        dies_at(machine, job, who, step)
        assert job.ask().endswith("right"), step
        again(job)
        assert machine.settled() == "running", number
    machine.leave()
    machine.come_back()
    assert job.ask().endswith("right")


def test_the_training_goes_on_without_the_daemon(machine: Machine) -> None:
    job = program(machine)
    again(job)
    dies_at(machine, job, "gcr.daemon", "reading")
    assert [job.ask("frees 4"), job.ask("adds")] == ["ok", "ok"], "the exports stood"
    assert job.ask().endswith("right")
    again(job)


@pytest.mark.slow
def test_a_program_that_is_stopped_in_a_save_runs_on_afterwards(machine: Machine) -> None:
    """Its exports stand, so gcr waits for the program to name its memory, and asks its agent nothing meanwhile."""
    job = program(machine)
    held = hold(machine, "prepared")
    job.tell("save")
    comes(held)
    os.kill(machine.target("llm"), signal.SIGSTOP)
    held.unlink()
    time.sleep(1.0)
    os.kill(machine.target("llm"), signal.SIGCONT)
    assert job.hear() == "ok"
    again(job)
    machine.leave()
    machine.come_back()
    assert job.ask().endswith("right")


def dies_at(machine: Machine, job: Victim, who: str, step: str) -> None:
    held = hold(machine, step)
    job.tell("save")
    comes(held)
    kill(*machine.children(who))
    held.unlink()
    answer = job.hear()
    if answer == "ok":
        answer = job.ask("saved")
    whole = answer == "right" and (who, step) == ("gcr.worker", "drained")  # the bytes were on the host
    assert whole or answer.split(":")[0] in ("peer_gone", "rolled_back", "daemon_unavailable"), (step, answer)


def dies_in_window(machine: Machine, job: Victim, who: str) -> None:
    held = hold(machine, "window")
    job.ask("window")
    comes(held)
    kill(*machine.children(who))
    held.unlink()
    for line in ("ends", "saved"):
        assert job.ask(line).split(":")[0] in ("peer_gone", "rolled_back", "daemon_unavailable")
    assert job.ask().endswith("right")
    again(job)
    assert machine.settled() == "running"


def again(job: Victim) -> None:
    until(lambda: job.ask("save") == "ok" or None, 40, "a save is made again")
    assert job.ask("saved") == "right"
