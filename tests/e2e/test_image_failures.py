"""Images that fail, or whose processes die: the job loses nothing, and nothing of a failed image is left."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from machine import Machine, kill, until
from stored import MIB, away, back, durable, image_code, leave_running, store_of

from gcr.image.store.store import Store

pytestmark = pytest.mark.on_disk


@pytest.mark.parametrize("who", ["gcr.daemon", "gcr.worker", "supervisor"])
def test_the_image_is_written_and_restored_after_any_death(machine: Machine, who: str) -> None:
    """Also after all that had its bytes in memory, but the program itself, are gone."""
    job = machine.told("llm", "alloc 8 4194304")
    before = job.ask()
    machine.inject("image.write hold " + str(machine.folder / "held"))
    assert machine.gcr("checkpoint", "llm", "--image", "warm", "--store", str(store_of(machine))).code == 0
    machine.wait_held()
    kill(*([job.supervisor.pid] if who == "supervisor" else machine.children(who)))
    (machine.folder / "held").unlink()
    durable(machine, "warm")
    assert machine.settled() == "suspended"
    assert back(machine, "warm")["state"] == "running"
    if who != "supervisor":
        assert job.ask() == before
    until(lambda: not machine.children("gcr.image_helper") or None, 10, "the helper ends")


def test_a_helper_that_dies_leaves_no_image(machine: Machine) -> None:
    job, before = machine.start()
    for step in ("image.begin", "image.write", "image.commit"):
        machine.inject(f"{step} die")
        gone = machine.gcr(
            "checkpoint", "llm", "--image", "warm", "--wait", "durable", "--store", str(store_of(machine))
        )
        error = gone.body["error"]
        said = "peer_gone" if step == "image.begin" else "image_failed"
        assert (gone.code, error["code"], error["state"]) == (4, said, "running"), gone.body
        assert job.ask() == before
    assert Store(store_of(machine)).images.names() == []
    away(machine, "warm")  # what the dead have claimed is free
    machine.come_back()
    assert job.ask() == before


def test_a_checkpoint_that_fails_leaves_no_image(machine: Machine) -> None:
    job, before = machine.start()
    machine.inject("checkpoint.drained fail")
    gone = machine.gcr("checkpoint", "llm", "--image", "warm", "--store", str(store_of(machine)))
    assert (gone.code, gone.body["error"]["code"]) == (4, "injected_fault")
    until(lambda: not machine.children("gcr.image_helper") or None, 10, "the helper ends")
    store = Store(store_of(machine))
    assert (store.images.names(), list(store.packs.folder.iterdir())) == ([], [])
    assert job.ask() == before


def test_a_flipped_bit_is_refused_and_the_job_untouched(machine: Machine) -> None:
    job, before = machine.start()
    away(machine, "warm")
    store = Store(store_of(machine))
    (pack,) = store.packs.folder.iterdir()
    files = [pack, *(store.images.folder / f"warm.{suffix}" for suffix in ("chunks", "json"))]
    for file in files:
        data = file.read_bytes()
        at = len(data) // 2
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert image_code(machine, "warm") == (6, "damaged"), file
        file.write_bytes(data)
    assert machine.settled() == "suspended"
    assert back(machine, "warm")["state"] == "running"
    assert job.ask() == before


def test_a_restore_from_an_image_that_fails_can_be_tried_again(machine: Machine) -> None:
    """Each step; then from host memory, which is still there."""
    job, before = machine.start()
    away(machine, "warm")
    for step in ("restore.room", "restore.back", "restore.mapped"):
        machine.inject(f"{step} fail")
        assert image_code(machine, "warm") == (4, "injected_fault")
        assert machine.settled() == "suspended"
    machine.come_back()
    assert job.ask() == before


def test_a_store_that_fills_up_costs_the_image_and_nothing_else(machine: Machine) -> None:
    """The disk takes no more in the middle of it: the largest file that the helper may write stands for it."""
    job = machine.told("llm", "alloc 8 4194304")
    before = job.ask()
    machine.leave()  # the worker has what it needs
    machine.come_back()
    limits = resource.prlimit(machine.daemon(), resource.RLIMIT_FSIZE)
    resource.prlimit(machine.daemon(), resource.RLIMIT_FSIZE, (MIB, limits[1]))
    words = ("checkpoint", "llm", "--image", "warm", "--store", str(store_of(machine)))
    gone = machine.gcr(*words, "--wait", "durable")
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (4, "image_failed", "running"), gone.body
    assert "EFBIG" in error["message"]
    assert job.ask() == before
    resource.prlimit(machine.daemon(), resource.RLIMIT_FSIZE, limits)
    store = Store(store_of(machine))
    assert (store.images.names(), list(store.packs.folder.iterdir())) == ([], [])
    assert machine.job("llm")["image"]["state"] == "failed"  # type: ignore[index]
    assert (
        "NOT WRITTEN"
        in subprocess.run(
            [sys.executable, "-m", "gcr", "ps"], env=machine.env, capture_output=True, text=True, timeout=60, check=True
        ).stdout
    )
    away(machine, "warm")
    assert back(machine, "warm")["state"] == "running"
    assert job.ask() == before


def test_a_job_that_cannot_be_taken_back_is_left_suspended(machine: Machine) -> None:
    job, before = machine.start()
    machine.inject("image.commit die", "restore.room fail")
    words = ("checkpoint", "llm", "--image", "warm", "--wait", "durable", "--store", str(store_of(machine)))
    gone = machine.gcr(*words)
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (4, "image_failed", "suspended"), gone.body
    assert "restore.room" in error["message"] and "gcr restore llm" in error["hint"]
    machine.comes_back(job, before)


def test_an_image_that_fails_in_the_background_leaves_the_job_away(machine: Machine) -> None:
    """A caller that did not wait was told that the job is suspended; it stays so."""
    job, before = machine.start()
    machine.inject(f"image.write hold {machine.folder / 'held'}", "image.commit die")
    assert machine.gcr("checkpoint", "llm", "--image", "warm", "--store", str(store_of(machine))).code == 0
    machine.wait_held()
    (machine.folder / "held").unlink()
    until(lambda: machine.job("llm")["image"]["state"] == "failed" or None, 30, "its end is known")  # type: ignore[index]
    assert machine.settled() == "suspended"
    machine.comes_back(job, before)


def test_a_step_of_another_meanwhile_is_not_taken_back(machine: Machine) -> None:
    """Restored and suspended again while its image was awaited: that is the later checkpoint's affair."""
    job, before = machine.start()
    machine.inject(f"image.write hold {machine.folder / 'held'}", "image.commit die")
    words = ("checkpoint", "llm", "--image", "warm", "--wait", "durable", "--store", str(store_of(machine)))
    going = machine.asking.submit(machine.gcr, *words)
    machine.wait_held()
    machine.come_back()
    machine.leave()
    (machine.folder / "held").unlink()
    gone = going.result(60)
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (4, "image_failed", "suspended"), gone.body
    machine.comes_back(job, before)


def test_the_daemon_keeps_nothing_of_an_image_that_failed(machine: Machine) -> None:
    machine.told("llm", "alloc 8 4194304")
    leave_running(machine, "warm")
    held = Path(f"/proc/{machine.daemon()}/fd")
    before = len(list(held.iterdir()))
    for _ in range(3):
        machine.inject("checkpoint.running fail")
        words = ("--image", "no", "--leave-running", "--store", str(store_of(machine)))
        assert machine.gcr("checkpoint", "llm", *words).code == 4
    until(lambda: len(list(held.iterdir())) <= before or None, 10, "it closed them")


def test_a_worker_that_dies_when_all_is_done_costs_nothing(machine: Machine) -> None:
    """Not the answer, nor the image that is just begun, nor the restore: only the link's rate is not known."""
    job = machine.told("llm", "alloc 8 4194304")
    before = job.ask()
    words = ("checkpoint", "llm", "--image", "warm", "--wait", "durable", "--store", str(store_of(machine)))
    with machine.held_at("checkpoint.vram_free"):
        going = machine.asking.submit(machine.gcr, *words)
        machine.wait_held()
        kill(*machine.children("gcr.worker"))
    gone = going.result(60)
    assert (gone.code, gone.body.get("state")) == (0, "suspended"), gone.body
    assert Store(store_of(machine)).images.names() == ["warm"]
    with machine.held_at("restore.running"):
        coming = machine.command("restore")
        machine.wait_held()
        kill(*machine.children("gcr.worker"))
    back = coming.result(60)
    assert (back.code, back.body.get("state")) == (0, "running"), back.body
    assert job.ask() == before
