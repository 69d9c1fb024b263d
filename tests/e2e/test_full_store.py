"""Stores on a file system with too little room: told before a job stops for it, or met in the middle of writing."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from filed import Filed
from little_room import LARGE, RING, room, words
from machine import Machine, until
from stored import store_of

from gcr.image.store.store import Store

pytestmark = pytest.mark.on_disk

MIB = 1 << 20
DISK = 12 * MIB  # LARGE is four times as much, and a process has more
TRIES = 5


@pytest.fixture
def disk(machine: Machine) -> Iterator[Path]:
    """A small file system at the place of the store."""
    folder = store_of(machine)
    folder.mkdir(mode=0o700)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "gcr-test", str(folder)])
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted")
    yield folder
    machine.close()  # its helpers write there
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def no_image(disk: Path) -> None:
    store = Store(disk)
    until(lambda: not list(store.packs.folder.iterdir()) or None, 20, "the helper leaves nothing")
    assert store.images.names() == []


@pytest.mark.parametrize("flags", [(), ("--leave-running",), ("--live",)])
def test_a_full_disk_is_told_before_anything_is_touched(machine: Machine, disk: Path, flags: tuple[str, ...]) -> None:
    job = machine.told("llm", LARGE)
    before = job.ask()
    Store(disk)
    with (disk / "other").open("wb") as other, pytest.raises(OSError, match="No space"):
        while True:
            other.write(bytes(1 << 16))
            other.flush()
    gone = machine.gcr(*words(machine, *flags))
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (3, "no_room", "running"), gone.body
    assert error["missing"] > 0 and f"{disk} has 0 B free" in error["message"] and "--store" in error["hint"]
    assert machine.settled() == "running" and job.ask() == before
    no_image(disk)


def test_room_that_ends_in_the_middle_leaves_the_job_suspended_in_host_memory(machine: Machine, disk: Path) -> None:
    job = machine.told("llm", LARGE)
    before = job.ask()
    for _ in range(TRIES):
        gone = machine.gcr(*words(machine))
        if gone.code == 0:
            break
        assert gone.body["error"]["code"] == "image_failed", gone.body  # the writer was there before the decision
        assert machine.settled() == "running" and job.ask() == before
        no_image(disk)
    assert (gone.code, gone.body.get("state")) == (0, "suspended"), gone.body
    assert f"the image takes up to 54.0 MiB, and {disk} has" in gone.stderr
    failed = until(lambda: (row := machine.job("llm")["image"])["state"] == "failed" and row, 30, "it fails")  # type: ignore[index]
    assert "No space left" in failed["error"]
    no_image(disk)
    row = machine.job("llm")
    assert row and (row["state"], row["only_in"]) == ("suspended", None)
    machine.come_back()
    assert job.ask() == before


def test_room_that_ends_while_it_is_waited_for_takes_the_checkpoint_back(machine: Machine, disk: Path) -> None:
    job = machine.told("llm", LARGE)
    before = job.ask()
    gone = machine.gcr(*words(machine, "--wait", "durable"))
    assert (gone.code, gone.body["error"]["code"]) == (4, "image_failed"), gone.body
    assert machine.settled() == "running" and job.ask() == before
    no_image(disk)


def test_room_that_ends_in_the_middle_of_a_straight_way_takes_the_checkpoint_back(machine: Machine, disk: Path) -> None:
    room(machine, RING)
    job = machine.told("llm", LARGE)
    before, addresses = job.ask(), job.ask("address")
    gone = machine.gcr(*words(machine))
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (4, "image_failed", "running"), gone.body
    assert "straight to the image" in gone.stderr and "No space left" in error["message"]
    assert (job.ask(), job.ask("address")) == (before, addresses)
    no_image(disk)
    again = machine.gcr(*words(machine)[:-1], str(machine.folder / "another"))
    assert (again.code, again.body.get("streamed")) == (0, True), again.body
    machine.come_back()
    assert job.ask() == before


@pytest.mark.usefixtures("criu")
def test_room_that_ends_while_the_processes_are_stored_leaves_a_job_that_runs(machine: Machine, disk: Path) -> None:
    job = Filed(machine)
    job.ask("alloc 4 65536")
    before = job.ask()
    gone = machine.gcr("checkpoint", "llm", "--image", "night", "--stop", "--store", str(disk))
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (4, "image_failed", "running"), gone.body
    assert "No space left" in error["message"]
    assert job.ask() == before
    no_image(disk)
    job.close()
