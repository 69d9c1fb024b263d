"""A snapshot in device memory, while it is held for the image of a job that runs on.

The memory comes back after any death, and no program is refused room because of it: neither the job nor another.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from machine import VICTIMS, Answer, Machine, kill, until
from worlds import AMD, NVIDIA, at, slowly

from gcr.image.store.store import Store
from gcr.protocol.agentwire import OccupiedRecord
from gcr.protocol.wire import OCCUPIED_DEVICES

pytestmark = pytest.mark.on_disk

MIB = 1 << 20
EACH = 8 * MIB


def words(machine: Machine, name: str) -> dict[str, object]:
    return {"image": name, "leave_running": True, "wait": "durable", "store": str(machine.folder / "store")}


def begin(machine: Machine, name: str) -> "Future[Answer]":
    return machine.asking.submit(machine.ask, "checkpoint", "llm", **words(machine, name))


def taken(machine: Machine, name: str) -> dict[str, object]:
    done = begin(machine, name).result(60)
    assert done.code == 0, done.body
    return done.body


def occupied(machine: Machine) -> int:
    """Devices of which agents are told so, by the page as it is mapped into the daemon."""
    (daemon,) = machine.children("gcr.daemon")
    for file in Path(f"/proc/{daemon}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed just now
            if "gcr-occupied" in str(file.readlink()):
                rows = OccupiedRecord.unpack_many(file.read_bytes(), 0, OCCUPIED_DEVICES)
                return sum(row.occupied for row in rows)
    raise AssertionError("the daemon has no such page")


def until_free(machine: Machine) -> None:
    """Waits until the page says that nothing is there: a little after it is gone."""
    until(lambda: occupied(machine) == 0 or None, 20, "nothing is said to be there")


@contextmanager
def held(machine: Machine, name: str) -> Iterator["Future[Answer]"]:
    """Within the block the program runs, and nothing of the snapshot has been read."""
    with machine.held_at("checkpoint.reading"):
        going = begin(machine, name)
        machine.wait_held()
        yield going


@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_it_is_there_for_as_long_as_it_is_read(machine: Machine) -> None:
    job = machine.told("llm", f"alloc 8 {EACH}")
    first = taken(machine, "one")  # the worker has its context, and its part of the arena
    assert first["snapshot_bytes"] == first["bytes_copied"] == first["bytes"]
    assert list(first["phases_s"])[-4:] == ["quiesced", "snapshotted", "running", "drained"]  # type: ignore[call-overload]
    phases: dict[str, float] = first["phases_s"]  # type: ignore[assignment]
    assert first["stop_s"] == pytest.approx(phases["running"] - phases["stop"])
    rest = machine.used()
    until_free(machine)
    assert job.ask("again 5") == "ok"
    before = job.ask()
    with held(machine, "two") as going:
        assert occupied(machine) == 1
        assert machine.used() == rest + first["bytes"]  # type: ignore[operator]
        assert job.ask("again 5") == "ok"
    done = going.result(60).body
    assert (done["snapshot_bytes"], done["bytes_copied"]) == (EACH, EACH)
    assert machine.used() == rest
    until_free(machine)
    assert job.ask() != before


@pytest.mark.parametrize(
    "step", ["quiesced", "snapshotted", *(slowly(step) for step in ("prepared", "running", "reading", "drained"))]
)
def test_it_is_said_for_as_long_as_it_is_there(machine: Machine, step: str) -> None:
    """Also where it fails in the middle."""
    job = machine.told("llm", f"alloc 8 {EACH}")
    taken(machine, "one")
    rest = machine.used()
    assert job.ask("again 5") == "ok"
    with machine.held_at(f"checkpoint.{step}"):
        going = begin(machine, "two")
        machine.wait_held()
        there = machine.used() > rest
        assert there == (step not in ("prepared", "drained"))
        assert occupied(machine) >= int(there)
        kill(*machine.children("gcr.image_helper"))
    assert going.result(60).code == 4
    until_free(machine)
    assert (machine.used(), machine.settled()) == (rest, "running")


def content(machine: Machine, name: str) -> tuple[list[int], list[bytes]]:
    """Returns an image's allocations and the names of their chunks; checks the chunks."""
    store = Store(machine.folder / "store")
    assert machine.gcr("verify", name, "--deep", "--store", str(store.path)).code == 0
    manifest = store.images.manifest(name)
    (process,) = manifest.processes
    references = store.images.references(manifest)
    return [each.spec.id for each in process.table.handles], [*references.names(0, len(references))]


@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_what_the_program_does_while_it_is_read_is_not_in_it(machine: Machine) -> None:
    """The image is of the cut, in spite of later writes, frees and allocations; freed memory is free."""
    job = machine.told("llm", f"alloc 8 {EACH}")
    taken(machine, "before")
    cut = content(machine, "before")
    Store(machine.folder / "store").remove(["before"])
    with held(machine, "image") as going:
        assert job.ask("again 6") == "ok"
        full = machine.used()
        assert job.ask("free_some 5") == "ok"
        assert machine.used() <= full - EACH
        assert job.ask(f"alloc 3 {EACH}") == "ok"
        after = job.ask()
    done = going.result(60)
    assert (done.code, done.body["snapshot_bytes"]) == (0, done.body["bytes"])
    assert content(machine, "image") == cut
    assert job.ask() == after
    assert taken(machine, "next")["bytes_copied"] == 4 * EACH
    machine.leave()
    machine.come_back()
    assert job.ask() == after


def test_where_there_is_little_room_it_has_what_fits(machine: Machine) -> None:
    """A sixteenth of the device stays free."""
    machine.memory = 160 * MIB
    job = machine.told("llm", f"alloc 8 {EACH}")
    found = taken(machine, "one")
    assert job.ask("again 5") == "ok"
    before = job.ask()
    assert 0 < found["snapshot_bytes"] < found["bytes_copied"] == found["bytes"]  # type: ignore[operator]
    with held(machine, "two") as going:
        assert machine.memory - machine.used() >= machine.memory // 16
    assert going.result(60).code == 0  # before that the next command may be refused
    assert machine.until_state("llm", "running") and job.ask() == before
    assert job.ask(f"hold 1 {52 * MIB}") == "ok"
    third = taken(machine, "three")
    assert third["snapshot_bytes"] == 0
    assert machine.gcr("verify", "one", "--deep", "--store", str(machine.folder / "store")).code == 0


@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_a_program_that_needs_the_room_gets_it(machine: Machine) -> None:
    """It answers as without gcr; the image is lost, and a waiting caller is told why."""
    # with contexts and a snapshot that is more than the device has; without the snapshot it is less
    lines = [f"alloc 8 {EACH}", f"alloc 12 {EACH}", "?"]
    said = contents(machine, *lines)
    job = machine.run("llm", sys.executable, str(VICTIMS / machine.where.told))
    assert job.ask(lines[0]) == said[0]
    with held(machine, "lost") as going:
        assert [job.ask(line) for line in lines[1:]] == said[1:]
        row = machine.job("llm")
        assert row and row["state"] == "running"
    failed = going.result(60)
    assert (failed.code, failed.body["error"]["code"], failed.body["error"]["state"]) == (4, "image_failed", "running")
    row = machine.job("llm")
    assert row and row["image"]["state"] == "failed" and "needed the room" in row["image"]["error"]
    assert Store(machine.folder / "store").images.names() == []
    assert job.ask() == said[-1]
    assert taken(machine, "again")["parent"] is None
    machine.leave()
    machine.come_back()
    assert job.ask() == said[-1]


def contents(machine: Machine, *lines: str) -> list[str]:
    """Returns a program's answers to these lines when it is alone on the device."""
    bare = machine.stranger()
    said = [bare.ask(line) for line in lines]
    bare.supervisor.kill()
    bare.supervisor.wait(10)
    return said


@pytest.mark.parametrize("begun", ["before", "meanwhile"])
@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_another_job_that_needs_the_room_gets_it(machine: Machine, begun: str) -> None:
    """Its 120 MiB, contexts and a snapshot of 64 MiB exceed the device; without the snapshot they fit."""
    machine.memory = 256 * MIB
    lines = [f"alloc 15 {EACH}", "?"]
    said = contents(machine, *lines)
    job = machine.told("llm", f"alloc 8 {EACH}")
    before = job.ask()
    other = machine.told("other") if begun == "before" else None
    with held(machine, "lost") as going:
        assert machine.memory - machine.used() < 15 * EACH, machine.used()
        other = other or machine.told("other")
        assert [other.ask(line) for line in lines] == said
    assert going.result(60).body["error"]["code"] == "image_failed"
    until_free(machine)
    assert (job.ask(), other.ask()) == (before, said[-1])
    assert taken(machine, "again")["parent"] is None


@pytest.mark.parametrize("step", ["snapshotted", "running"])
@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_from_its_making_on_its_room_is_kept(machine: Machine, step: str) -> None:
    """Another job while the first one stands still; the first one itself at the instant that its gate opens."""
    machine.memory = 256 * MIB
    lines = [f"alloc 15 {EACH}", "?"]
    said = contents(machine, *lines)
    job = machine.told("llm", f"hold 8 {EACH}")
    who = job if step == "running" else machine.told("other")
    with machine.held_at(f"checkpoint.{step}"):
        going = begin(machine, "lost")
        machine.wait_held()
        assert [who.ask(line) for line in lines] == said
    assert going.result(60).body["error"]["code"] == "image_failed"
    assert who.ask() == said[-1]


@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_its_room_is_kept_when_the_daemon_dies(machine: Machine, another: bool) -> None:
    """No daemon is there to be asked, or one without knowledge: the program waits for the worker's end."""
    machine.memory = 256 * MIB
    lines = [f"alloc 15 {EACH}", "?"]
    said = contents(machine, *lines)
    job = machine.told("llm", f"alloc 8 {EACH}")
    before = job.ask()
    other = machine.told("other")
    with held(machine, "lost") as going:
        (worker,) = machine.children("gcr.worker")
        os.kill(worker, signal.SIGSTOP)  # it ends late
        if another:
            pid = machine.target("other")
            os.kill(pid, signal.SIGSTOP)  # the time for which it waits for workers begins when it hears of the death
        kill(*machine.children("gcr.daemon"))
        if another:
            assert machine.gcr("daemon", "start").code == 0
            os.kill(pid, signal.SIGCONT)
            machine.targets("other")
        asking = machine.asking.submit(other.ask, lines[0])
        time.sleep(0.3)
        assert not asking.done()
        os.kill(worker, signal.SIGCONT)
        assert asking.result(10) == said[0]
    assert going.result(60).code == 4
    assert machine.settled() == "running"
    assert (job.ask(), other.ask()) == (before, said[-1])


def test_a_job_that_comes_back_is_not_refused_for_it(machine: Machine) -> None:
    other = machine.told("other", f"alloc 9 {EACH}")
    before = other.ask()
    assert machine.gcr("checkpoint", "other").code == 0
    machine.told("llm", f"alloc 9 {EACH}")
    with held(machine, "lost") as going:
        assert machine.gcr("restore", "other").code == 0
        assert other.ask() == before
    assert going.result(60).body["error"]["code"] == "image_failed"


@pytest.mark.parametrize("who", ["gcr.daemon", "gcr.worker", "gcr.image_helper"])
@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_the_memory_comes_back_after_any_death(machine: Machine, who: str) -> None:
    job = machine.told("llm", f"alloc 8 {EACH}")
    taken(machine, "one")
    rest = machine.used()
    assert job.ask("again 5") == "ok"
    before = job.ask()
    with held(machine, "lost") as going:
        assert machine.used() > rest
        kill(*machine.children(who))
    assert going.result(60).code == 4
    assert machine.settled() == "running"
    until(lambda: machine.used() <= rest or None, 20, "the device has its memory back")
    assert job.ask() == before
    assert taken(machine, "two")["bytes_copied"] == EACH
    assert machine.used() == rest


def test_a_program_that_ends_leaves_nothing_of_it(machine: Machine) -> None:
    machine.told("llm", f"alloc 8 {EACH}")
    with held(machine, "lost") as going:
        kill(machine.target("llm"))
        until(lambda: machine.job("llm")["state"] != "running" or None, 20, "it is heard of")  # type: ignore[index]
    assert going.result(60).code in (3, 4)
    until(lambda: machine.job("llm") is None or None, 20, "the job is forgotten")
    until(lambda: machine.used() <= 16 * MIB or None, 20, "no more is left than the worker's context")


def test_a_program_that_is_stopped_meanwhile_goes_on(machine: Machine) -> None:
    """Its agent answers late, and all that was asked of it: the next checkpoint finds no transaction open."""
    job = machine.told("llm", f"alloc 4 {EACH}")
    before, pid = job.ask(), machine.target("llm")
    with machine.held_at("checkpoint.running"):
        going = begin(machine, "one")
        machine.wait_held()
        os.kill(pid, signal.SIGSTOP)
    answer = going.result(60)
    os.kill(pid, signal.SIGCONT)
    assert answer.code == 0, answer.body
    assert job.ask() == before
    assert taken(machine, "two")["bytes_copied"] == 0
    machine.leave()
    machine.come_back()
    assert job.ask() == before
