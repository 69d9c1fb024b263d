"""A restore from an image goes through a few slots of host memory: more bytes than they have, and with any failure."""

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from machine import VICTIMS, Answer, Machine, Victim, kill, until
from stored import store_of
from two_devices import COUNTED, Job, three_devices
from worlds import AMD, ASCEND, NOEXPORT, SLOW, at, everywhere

from gcr.image.store.store import Store

MIB = 1 << 20
SLOT, SLOTS = 2 * MIB, 4
MANY = "alloc 12 4194304"  # bytes: six times what a ring has
LEAST = 48 * MIB


@pytest.fixture(autouse=True)
def small_slots(request: pytest.FixtureRequest) -> None:
    if "machine" in request.fixturenames:
        request.getfixturevalue("machine").extra |= {"GCR_SLOT_BYTES": str(SLOT)}


def words(machine: Machine) -> tuple[str, ...]:
    return ("--image", "warm", "--store", str(store_of(machine)))


def away(machine: Machine) -> None:
    gone = machine.gcr("checkpoint", "llm", *machine.where.options, *words(machine), "--wait", "durable")
    assert gone.code == 0, gone.body


def back(machine: Machine, *flags: str) -> Answer:
    return machine.gcr("restore", *words(machine), *flags)


def suspended(machine: Machine, *lines: str) -> tuple[Victim, str]:
    job = machine.told("llm", *(lines or (MANY,)))
    before = job.ask()
    away(machine)
    return job, before


def counted(machine: Machine, pid: int) -> tuple[int, int]:
    """Bytes in use on the first device, and those of a process, by the device's own count."""
    used, mine = machine.bare(sys.executable, "-c", COUNTED.format(pid=pid)).split()[1:3]
    return int(used), int(mine)


@contextmanager
def in_the_middle(machine: Machine, command: str = "", step: str = "image.read") -> Iterator["Future[Answer]"]:
    """Yields a restore of which the first window is not read within the block, and all others are."""
    with machine.held_at(step):
        going = machine.asking.submit(back, machine, *command.split())
        machine.wait_held()
        yield going


def returns(machine: Machine, job: Victim, before: str) -> None:
    """Checks that the job comes back from the same image, and once more."""
    assert machine.settled() == machine.where.suspended
    came = back(machine)
    assert (came.code, came.body.get("state"), came.body.get("streamed")) == (0, "running", True), came.body
    assert job.ask() == before
    machine.leave()
    machine.come_back()
    assert job.ask() == before


def refused(going: "Future[Answer]") -> tuple[int, str, str]:
    gone = going.result(60)
    error = gone.body["error"]
    return gone.code, error["code"], error["state"]


@everywhere(slow=[AMD, ASCEND])
def test_more_than_the_slots_hold_comes_back(machine: Machine) -> None:
    job, before = suspended(machine, MANY, "mixed 30 1000 5000000", "free_some 7", machine.where.handles(5))
    came = back(machine)
    assert (came.code, came.body["state"]) == (0, "running"), came.body
    assert came.body["streamed"] is not machine.where.copies, "an agent that copies needs all of it in host memory"
    assert came.body["bytes"] >= LEAST
    assert job.ask() == before
    machine.leave()
    machine.come_back()
    assert job.ask() == before


def shared_memory(pid: int) -> int:
    """Returns the resident bytes of a process in memfds, its own and those of others."""
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("RssShmem"))
    return int(line.split()[1]) << 10


def test_host_memory_is_that_of_the_slots(machine: Machine) -> None:
    """After the death of the workers neither helper nor arena ever has more than a ring."""
    machine.extra |= {"GCR_PREPARE_ARENA": "0"}
    job, before = suspended(machine)
    kill(*machine.children("gcr.worker"))
    with in_the_middle(machine) as going:
        (helper,) = machine.children("gcr.image_helper")
        until(lambda: shared_memory(helper) >= SLOTS // 2 * SLOT or None, 10, "the other windows are read")
        time.sleep(0.5)
        most = SLOTS * SLOT
        assert shared_memory(helper) <= most < LEAST / 5
        assert machine.ask("status").body["arena_bytes"] <= most
        (machine.folder / "held").unlink()
        came = going.result(60)
    assert (came.code, came.body["streamed"]) == (0, True), came.body
    assert job.ask() == before


def test_it_comes_back_beside_jobs_that_fill_the_arena(machine: Machine) -> None:
    """Its share of host memory is theirs; the room for a job to come back is not refused for that."""
    settings = machine.folder / "config.toml"
    settings.write_text("")  # one that is named must be there
    machine.extra |= {"GCR_CONFIG": str(settings), "GCR_PREPARE_ARENA": "0"}
    other = machine.told("other", MANY)
    job, before = suspended(machine)
    said = other.ask()
    settings.write_text("arena_share = 0.000001")  # of any machine less than a slot
    kill(*machine.children("gcr.worker"))
    gone = machine.ask("checkpoint", "other")
    assert (gone.code, gone.body["error"]["code"]) == (3, "no_room"), gone.body
    came = back(machine)
    assert (came.code, came.body["streamed"]) == (0, True), came.body
    assert (job.ask(), other.ask()) == (before, said)


@pytest.mark.parametrize("machine", [at(NOEXPORT)], indirect=True)
def test_where_an_agent_copies_there_must_be_room_for_all_of_it(machine: Machine) -> None:
    """The largest file that the helper may make stands for the memory that there is."""
    job, before = suspended(machine)
    limits = resource.prlimit(machine.daemon(), resource.RLIMIT_FSIZE)
    resource.prlimit(machine.daemon(), resource.RLIMIT_FSIZE, (4 * SLOT, limits[1]))
    gone = back(machine)
    resource.prlimit(machine.daemon(), resource.RLIMIT_FSIZE, limits)
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (3, "no_room", "suspended"), gone.body
    came = back(machine)
    assert (came.code, came.body["streamed"]) == (0, False), came.body
    assert job.ask() == before


def test_damage_in_the_middle_leaves_the_job_as_it_was(machine: Machine) -> None:
    """A disk that rots while it is read: all windows but one are on the device by then."""
    job, before = suspended(machine)
    (pack,) = Store(store_of(machine)).packs.folder.iterdir()
    whole, target = pack.read_bytes(), machine.target("llm")
    unused, nothing = counted(machine, target)
    assert nothing == 0
    with in_the_middle(machine) as going:
        until(lambda: counted(machine, target)[0] >= unused + LEAST or None, 10, "its memory is made")
        time.sleep(0.5)
        assert counted(machine, target)[1] == 0, "its control state is where it was"
        rotten = bytearray(whole)
        for at in range(4096, len(whole) - 8192, 1 << 18):
            rotten[at] ^= 1
        with pack.open("r+b") as file:
            file.write(rotten)
        (machine.folder / "held").unlink()
        assert refused(going) == (6, "damaged", "suspended")
    assert counted(machine, target) <= (unused, 0), "what was made for it is free"
    assert back(machine).code == 6
    pack.with_suffix(".pack.bad").unlink(missing_ok=True)
    pack.write_bytes(whole)
    assert machine.target("llm") == target
    returns(machine, job, before)


def test_after_it_failed_the_job_comes_back_from_host_memory(machine: Machine) -> None:
    job, before = suspended(machine)
    for step, code in (("image.read fail", "injected_fault"), ("restore.loaded fail", "injected_fault")):
        machine.inject(step)
        gone = back(machine)
        assert (gone.code, gone.body["error"]["code"], gone.body["error"]["state"]) == (4, code, "suspended")
    machine.come_back()
    assert job.ask() == before


@pytest.mark.parametrize(
    ("who", "step"),
    [
        *((who, "image.read") for who in ("gcr.daemon", "gcr.worker", "gcr.image_helper")),
        *(pytest.param(who, "restore.loaded", marks=SLOW) for who in ("gcr.daemon", "gcr.worker")),
    ],
)
def test_the_image_is_there_after_any_death_in_the_middle(machine: Machine, who: str, step: str) -> None:
    """Or when all is on the device, and nothing else was done yet."""
    job, before = suspended(machine)
    with in_the_middle(machine, step=step) as going:
        kill(*machine.children(who))
        (machine.folder / "held").unlink()
        gone = going.result(60)
    assert gone.code in (3, 4), gone.body
    until(lambda: not machine.children("gcr.image_helper") or None, 40, "the helper ends")
    returns(machine, job, before)


def test_the_process_that_dies_in_the_middle_is_gone_and_nothing_of_it_stays(machine: Machine) -> None:
    job, _ = suspended(machine)
    with in_the_middle(machine) as going:
        os.kill(machine.target("llm"), signal.SIGKILL)
        (machine.folder / "held").unlink()
        gone = going.result(60)
        assert (gone.code, gone.body["error"]["code"]) == (3, "job_ending"), gone.body
    job.supervisor.wait(30)
    until(lambda: machine.job("llm") is None or None, 30, "the job is forgotten")
    other = machine.told("other", "alloc 40 4194304")  # there is room for it
    assert not other.ask().startswith("wrong")


def test_a_waiting_caller_can_leave_in_the_middle(machine: Machine) -> None:
    job, before = suspended(machine)
    with machine.held_at("image.read"):
        caller = machine.begin("restore", *words(machine))
        machine.wait_held()
        time.sleep(0.5)
        began = time.monotonic()
        caller.send_signal(signal.SIGINT)
        out, _ = caller.communicate(timeout=30)
        assert (caller.returncode, time.monotonic() - began < 20) == (130, True), out
        assert machine.settled() == "suspended"
        machine.come_back()  # while the helper hangs still
        assert job.ask() == before


def test_it_has_a_deadline(machine: Machine) -> None:
    job, before = suspended(machine)
    with in_the_middle(machine, "--timeout 8") as going:
        assert refused(going) == (4, "deadline_passed", "suspended")
    returns(machine, job, before)


def test_a_disk_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    monkeypatch.setenv("GCR_STORE_S", "6")
    job, before = suspended(machine)
    with in_the_middle(machine) as going:
        assert refused(going) == (3, "store_unusable", "suspended")
    until(lambda: not machine.children("gcr.image_helper") or None, 10, "the helper ends")
    machine.come_back()
    assert job.ask() == before


def test_two_processes_and_bytes_on_the_way(machine: Machine) -> None:
    machine.extra |= {"GCR_SIM_BPS": str(40 * MIB)}
    pair = machine.run("llm", sys.executable, str(VICTIMS / "pair_victim.py"))
    machine.targets("llm", 2)
    assert pair.ask("alloc 9 4194304").endswith("child ok")
    before = pair.ask()
    away(machine)
    told: list[dict[str, Any]] = []
    with machine.connected() as client:
        body = {"target": "llm", "image": "warm", "store": str(store_of(machine))}
        answer = client.request("restore", body, timeout=60, on_progress=told.append)
    assert (answer["state"], answer["streamed"]) == ("running", True)
    moving = [report for report in told if report["phase"] == "reading" and report["total_bytes"]]
    done = [report["bytes"] for report in moving]
    assert done == sorted(done) and len({*done}) > 5
    assert {report["total_bytes"] for report in moving} == {answer["bytes"]}
    assert pair.ask() == before


def test_several_devices_come_back_exchanged(tmp_path: Path) -> None:
    machine = three_devices(tmp_path, GCR_SLOT_BYTES=str(SLOT))
    try:
        job = Job.start(machine)
        first, second = job.devices
        for moves in ((), (f"{first}={second}", f"{second}={first}")):
            away(machine)
            came = back(machine, *(word for move in moves for word in ("--device", move)))
            assert (came.code, came.body["streamed"], len(came.body["moved"])) == (0, True, len(moves)), came.body
            job.devices = (second, first) if moves else job.devices
            job.is_whole()
            assert machine.gcr("rm", "warm", "--store", str(store_of(machine))).code == 0
    finally:
        machine.close()
