"""Checkpoints that the host has no room for: straight to the image, through a ring."""

import os
import signal
import sys
from pathlib import Path

import pytest
from little_room import LARGE, MIB, MOST, RING, SLOT, comes_back, large, nothing_is_left, room, words
from machine import VICTIMS, Machine, until
from stored import store_of
from two_devices import Job, three_devices
from worlds import AMD, ASCEND, NOEXPORT, NVIDIA, at, slowly

from gcr.image.store.store import Store


def refusal(machine: Machine, *flags: str) -> dict[str, object]:
    gone = machine.gcr(*words(machine, *flags))
    error: dict[str, object] = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (3, "no_room", "running"), gone.body
    return error


everywhere = pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)


@everywhere
def test_what_the_host_has_no_room_for_goes_straight_to_the_image(machine: Machine) -> None:
    job, before = large(machine)
    addresses = job.ask("address")
    gone = machine.gcr(*words(machine))
    assert gone.code == 0, gone.body
    body = gone.body
    assert (body["streamed"], body["state"], body["strategy"]) == (True, machine.where.suspended, "handoff")
    assert body["bytes_total"] == body["bytes"] > 4 * RING
    assert 0 < body["durable_s"] <= body["vram_free_s"]
    assert "straight to the image" in gone.stderr
    kept = machine.job("llm")
    assert kept and kept["only_in"] == {"image": "warm", "store": str(store_of(machine))}
    assert sum(worker["bytes"] for worker in machine.gcr("daemon", "status").body["workers"]) <= MOST
    stop = machine.gcr("checkpoint", "llm", "--image", "whole", "--stop", "--store", str(store_of(machine)))
    assert (stop.code, stop.body["error"]["code"]) == (3, "wrong_state"), stop.body
    assert "image warm alone has its bytes" in stop.body["error"]["message"]
    assert machine.gcr("verify", "warm", "--deep", "--store", str(store_of(machine))).code == 0
    comes_back(machine, job, before)
    assert job.ask("address") == addresses
    kept = machine.job("llm")
    assert kept and kept["only_in"] is None


def test_with_room_nothing_is_streamed(machine: Machine) -> None:
    room(machine, 256 * MIB)
    machine.told("llm", LARGE)
    body = machine.gcr(*words(machine, "--wait", "durable")).body
    assert body["streamed"] is False
    kept = machine.job("llm")
    assert kept and kept["only_in"] is None


def test_allocations_that_are_no_whole_chunks(machine: Machine) -> None:
    machine.extra |= {"GCR_SIM_GRANULARITY": str(64 << 10)}
    job, before = large(machine, "mixed 40 65536 3000000", "free_some 3", "handles 5")
    assert machine.gcr(*words(machine)).body["streamed"]
    comes_back(machine, job, before)


def test_a_second_image_of_the_same_bytes_writes_none(machine: Machine) -> None:
    job, before = large(machine)
    first = machine.gcr(*words(machine)).body
    comes_back(machine, job, before)
    second = machine.gcr(
        "checkpoint", "llm", "--image", "again", "--store", str(store_of(machine)), "--max-rate", "200M"
    ).body
    assert (second["streamed"], second["parent"], second["bytes_written"], second["bytes_changed"]) == (
        True,
        "warm",
        0,
        0,
    )
    assert first["bytes_written"] > 0
    comes_back(machine, job, before)


# ---- no way ------------------------------------------------------------------------------------------------------


@everywhere
def test_without_an_image_there_is_no_room_and_it_says_what_would_help(machine: Machine) -> None:
    job, before = large(machine)
    gone = machine.gcr("checkpoint", "llm", *machine.where.options)
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (3, "no_room", "running")
    assert "--image" in error["hint"]
    assert job.ask() == before


@pytest.mark.parametrize("flags", [["--live"], ["--leave-running"]])
def test_what_copies_while_the_program_runs_is_not_streamed(machine: Machine, flags: list[str]) -> None:
    job, before = large(machine)
    error = refusal(machine, *flags)
    assert "only a checkpoint that stops the job" in str(error["message"])
    assert "--image" not in str(error["hint"])
    nothing_is_left(machine)
    assert job.ask() == before


@pytest.mark.parametrize("machine", [at(NOEXPORT), at(ASCEND)], indirect=True)
def test_a_process_that_copies_by_itself_is_not_streamed(machine: Machine) -> None:
    room(machine, RING)
    job = machine.told("llm", LARGE)
    before = job.ask()
    gone = machine.gcr(*words(machine))
    assert (gone.code, gone.body["error"]["code"]) == (3, "no_room"), gone.body
    assert "copies by itself" in gone.body["error"]["message"]
    assert job.ask() == before


def test_without_room_for_two_slots_it_is_refused(machine: Machine) -> None:
    job, before = large(machine)
    room(machine, 0)
    error = refusal(machine)
    assert 0 < int(str(error["missing"])) <= 2 * SLOT
    assert "even of a ring" in str(error["message"])
    nothing_is_left(machine)
    assert job.ask() == before


# ---- memory ------------------------------------------------------------------------------------------------------


def test_memory_is_that_of_the_ring_however_much_passes(machine: Machine) -> None:
    """Both the worker's arena and the helper's own memory are bounded while it goes on."""
    job, before = large(machine, "alloc 50 4194304")
    own, arena = [], []
    with machine.held_at("checkpoint.filled_90"):
        running = machine.begin(*words(machine))
        machine.wait_held()
        (helper,) = machine.children("gcr.image_helper")
        own.append(status(helper, "RssAnon"))
        arena.append(machine.gcr("daemon", "status").body)
        assert job.silent()
    running.communicate(timeout=60)
    assert running.returncode == 0
    assert 2 * SLOT <= sum(worker["bytes"] for worker in arena[0]["workers"]) <= MOST
    assert max(own) < 150 * MIB, own
    comes_back(machine, job, before)


def status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) * 1024


def test_the_device_is_free_only_once_the_image_is_durable(machine: Machine) -> None:
    job, before = large(machine)
    full = machine.used()
    for step in ("filled_20", "durable"):
        with machine.held_at(f"checkpoint.{step}"):
            going = machine.begin(*words(machine, "--wait", "vram"))
            machine.wait_held()
            assert machine.used() >= full - 16 * MIB  # the context may be gone by now; no byte of data is
            assert bool(Store(store_of(machine)).images.names()) == (step == "durable")
            if step == "filled_20":
                machine.leaves(going.kill)
        going.communicate(timeout=60)
        if step == "filled_20":
            machine.until_state("llm", "running")
            nothing_is_left(machine)
    assert going.returncode == 0
    assert machine.used() < 4 * 12 * MIB
    comes_back(machine, job, before)


def test_the_ring_is_given_back(machine: Machine) -> None:
    """Another job leaves through the same few slots while the first one is away."""
    job, before = large(machine)
    other = machine.told("other", LARGE)
    said = other.ask()
    for name in ("llm", "other"):
        gone = machine.gcr("checkpoint", name, "--image", name, "--store", str(store_of(machine)))
        assert (gone.code, gone.body["streamed"]) == (0, True), gone.body
    assert machine.gcr("restore", "other").code == 0
    comes_back(machine, job, before)
    assert other.ask() == said


# ---- several -----------------------------------------------------------------------------------------------------


def test_two_devices_stream_side_by_side(tmp_path: Path) -> None:
    machine = three_devices(tmp_path)
    try:
        room(machine, RING)
        job = Job.start(machine)
        gone = machine.gcr(*words(machine))
        assert (gone.code, gone.body["streamed"], gone.body["vram_after_bytes"]) == (0, True, 0), gone.body
        assert len({row["device"] for row in gone.body["processes"]}) == 2
        job.come_back()
    finally:
        machine.close()


@pytest.mark.parametrize("one_dies", [slowly(False), True])
def test_two_processes_stream_side_by_side(machine: Machine, one_dies: bool) -> None:
    """One that ends while both are suspended keeps the other from nothing."""
    room(machine, 2 * RING)
    job = machine.run("pair", sys.executable, str(VICTIMS / "pair_victim.py"))
    first, second = machine.targets("pair", 2)
    assert job.ask("alloc 8 4194304").endswith("child ok")
    before = job.ask()
    gone = machine.gcr(*words(machine, job="pair"))
    assert (gone.code, gone.body["streamed"], gone.body["vram_after_bytes"]) == (0, True, 0), gone.body
    if one_dies:
        (child,) = [pid for pid in (first, second) if parent_of(pid) in (first, second)]
        os.kill(child, signal.SIGKILL)
        until(lambda: len(machine.job("pair")["processes"]) == 1 or None, 20, "it is gone")  # type: ignore[index]
    assert machine.gcr("restore", "pair").code == 0
    parent = before.split(" | ")[0]
    assert job.ask() == (f"{parent} | child gone" if one_dies else before)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
