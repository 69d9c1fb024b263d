"""Images that are the only copy of a job: nothing removes them, and the job comes back from them."""

import subprocess
import sys
from pathlib import Path

from little_room import comes_back, large, words
from machine import Machine, kill
from stored import store_of

from gcr.image.store.store import Store


def test_the_only_copy_stays_until_the_job_is_back(machine: Machine) -> None:
    job, before = large(machine)
    assert machine.gcr(*words(machine)).code == 0
    store = ("--store", str(store_of(machine)))
    refused = machine.gcr("rm", "warm", *store)
    assert (refused.code, refused.body["error"]["code"]) == (3, "image_needed")
    assert refused.body["error"]["hint"] == "gcr restore llm"
    assert machine.gcr("prune", "--keep-last", "0", *store).body["images"] == []
    listed = subprocess.run([sys.executable, "-m", "gcr", "ps"], env=machine.env, capture_output=True, text=True)
    assert "in image warm ONLY" in listed.stdout
    comes_back(machine, job, before)
    assert machine.gcr("rm", "warm", *store).body["images"] == ["warm"]


def test_a_restore_that_fails_finds_the_image_again(machine: Machine) -> None:
    job, before = large(machine)
    assert machine.gcr(*words(machine)).code == 0
    for step in ("room", "back", "mapped"):
        machine.inject(f"restore.{step} fail")
        failed = machine.gcr("restore", "llm")
        error = failed.body["error"]
        assert (failed.code, error["code"], error["state"]) == (4, "injected_fault", "suspended")
    kill(*machine.children("gcr.daemon"), *machine.children("gcr.worker"))
    assert machine.settled() == "suspended"
    (pack,) = Store(store_of(machine)).packs.folder.glob("*.pack")
    flip(pack)
    damaged = machine.gcr("restore", "llm")
    assert (damaged.code, damaged.body["error"]["state"]) == (6, "suspended")
    flip(pack)
    comes_back(machine, job, before)


def test_an_only_copy_that_is_damaged_is_pulled_again(machine: Machine) -> None:
    job, before = large(machine)
    assert machine.gcr(*words(machine)).code == 0
    where = (f"file://{machine.folder / 'away'}", "--store", str(store_of(machine)))
    assert machine.gcr("push", "warm", *where).code == 0
    (pack,) = Store(store_of(machine)).packs.folder.glob("*.pack")
    flip(pack)
    damaged = machine.gcr("restore", "llm")
    assert (damaged.code, damaged.body["error"]["state"]) == (6, "suspended")
    assert machine.gcr("pull", "warm", *where).body["packs_moved"] == 1
    comes_back(machine, job, before)


def flip(pack: Path) -> None:
    with pack.open("r+b") as file:
        file.seek(4096 + 100)
        byte = file.read(1)[0]
        file.seek(4096 + 100)
        file.write(bytes([byte ^ 1]))


def test_the_only_copy_of_a_job_that_ended_may_go(machine: Machine) -> None:
    job, _ = large(machine)
    assert machine.gcr(*words(machine)).code == 0
    machine.end(job)
    assert machine.gcr("prune", "--keep-last", "0", "--store", str(store_of(machine))).body["images"] == ["warm"]


def test_an_image_that_is_about_to_be_the_only_copy_stays(machine: Machine) -> None:
    """The removal comes after the image is durable and before the decision."""
    job, before = large(machine)
    with machine.held_at("checkpoint.durable"):
        running = machine.begin(*words(machine))
        machine.wait_held()
        busy = machine.gcr("rm", "warm", "--store", str(store_of(machine)))
        assert (busy.code, busy.body["error"]["code"]) == (3, "store_busy"), busy.body
    running.communicate(timeout=60)
    assert running.returncode == 0
    comes_back(machine, job, before)


def test_the_key_of_an_encrypted_store_is_asked_for(machine: Machine) -> None:
    job, before = large(machine)
    path = machine.folder / "key"
    path.write_text(bytes(range(32)).hex())
    path.chmod(0o600)
    key = ("--key-file", str(path))
    assert machine.gcr(*words(machine, *key)).body["streamed"]
    refused = machine.gcr("restore", "llm")
    error = refused.body["error"]
    assert (refused.code, error["code"], error["state"]) == (3, "wrong_key", "suspended")
    assert "--image warm" in error["hint"]
    image = ("--image", "warm", "--store", str(store_of(machine)))
    assert machine.gcr("restore", *image, *key).body["state"] == "running"
    assert job.ask() == before
