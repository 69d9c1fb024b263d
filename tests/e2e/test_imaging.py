"""Images of jobs: written while the job is away or back again, and read by the very processes that they are of."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from machine import VICTIMS, Answer, Machine, Victim, kill, until
from worlds import everywhere, slowly

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from imaging import bytes_of, write

from gcr.image.store.store import Store

MIB = 1 << 20
NOTHING = """
import sys
sys.path.insert(0, sys.argv[1])
from cuda_calls import primary_context
primary_context()
print("ready", flush=True)
sys.stdin.read()
"""


def store_of(machine: Machine) -> Path:
    return machine.folder / "store"


def away(machine: Machine, name: str, *flags: str) -> dict[str, object]:
    """The job is checkpointed, and its image durable."""
    words = ("--image", name, "--wait", "durable", "--store", str(store_of(machine)))
    gone = machine.gcr("checkpoint", "llm", *machine.where.options, *words, *flags)
    assert gone.code == 0, gone.body
    return gone.body


def back(machine: Machine, name: str, *flags: str) -> dict[str, object]:
    return machine.gcr("restore", "--image", name, "--store", str(store_of(machine)), *flags).body


def image_code(machine: Machine, name: str) -> tuple[int, str]:
    refused = machine.gcr("restore", "--image", name, "--store", str(store_of(machine)))
    return refused.code, refused.body["error"]["code"]


def durable(machine: Machine, name: str) -> None:
    until(lambda: name in Store(store_of(machine)).images.names() or None, 30, f"image {name} is durable")


def chunks(machine: Machine, name: str) -> list[bytes]:
    """The names of an image's chunks, which are right: they are hashes of what they contain."""
    assert machine.gcr("verify", name, "--deep", "--store", str(store_of(machine))).code == 0
    return names_of_chunks(store_of(machine), name)


def names_of_chunks(folder: Path, name: str) -> list[bytes]:
    store = Store(folder)
    return [reference.name for reference in store.images.references(store.images.manifest(name))]


@everywhere()
def test_a_job_comes_back_from_its_image(machine: Machine) -> None:
    job = machine.told("llm", "mixed 30 1000 5000000", "free_some 7", machine.where.handles(5))
    before, addresses = job.ask(), job.ask("address")
    said = away(machine, "warm")
    assert (said["image"], said["cut"], said["bytes_total"]) == ("warm", "device", said["bytes"])
    assert 0 < said["vram_free_s"] <= said["durable_s"]
    assert back(machine, "warm")["state"] == "running"
    assert (job.ask(), job.ask("address")) == (before, addresses)
    machine.leave()
    machine.come_back()
    assert job.ask() == before


def test_what_the_store_has_is_not_written_again(machine: Machine) -> None:
    job = machine.told("llm", "alloc 8 4194304")
    first = away(machine, "one")
    machine.come_back()
    second = away(machine, "two")
    assert (second["bytes_total"], second["bytes_written"]) == (first["bytes_total"], 0)
    assert (first["bytes_changed"], second["bytes_changed"], second["dedup_ratio"]) == (None, 0, None)
    machine.come_back()
    job.ask("alloc 1 4194304")
    third = away(machine, "three")
    assert 0 < third["bytes_written"] <= third["bytes_changed"] <= 6 * MIB  # some of its chunks are alike
    assert Store(store_of(machine)).images.manifest("three").costs.parent == "two"


def test_the_job_may_run_before_its_image_is_durable(machine: Machine) -> None:
    """No act of the job then, and no other checkpoint, changes a byte of the image."""
    job = machine.told("llm", "alloc 8 4194304")
    away(machine, "undisturbed")
    machine.come_back()
    before = job.ask()
    machine.inject("image.write hold " + str(machine.folder / "held"))
    gone = machine.gcr("checkpoint", "llm", "--image", "warm", "--store", str(store_of(machine)))
    assert (gone.code, gone.body["durable_s"], gone.body["bytes_written"]) == (0, None, None)
    machine.wait_held()
    machine.come_back()
    assert (job.ask("free_some 2"), job.ask("alloc 6 4194304")) == ("ok", "ok")
    changed = job.ask()
    assert changed != before
    machine.leave()
    (machine.folder / "held").unlink()
    durable(machine, "warm")
    machine.come_back()
    assert job.ask() == changed
    assert chunks(machine, "warm") == chunks(machine, "undisturbed")


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


def test_a_name_that_exists_is_refused_before_anything_stops(machine: Machine) -> None:
    job, before = machine.start()
    away(machine, "warm")
    machine.come_back()
    gone = machine.gcr("checkpoint", "llm", "--image", "warm", "--store", str(store_of(machine)))
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (3, "image_exists", "running")
    assert "quiesced" not in machine.logs()["gcrd.log"].split("image_exists")[-1]
    assert job.ask() == before


@pytest.mark.parametrize("broken", ["a file", "not ours"])
def test_a_store_that_cannot_be_used_is_refused(machine: Machine, broken: str) -> None:
    job, before = machine.start()
    store = store_of(machine)
    if broken == "a file":
        store.write_text("")
    else:
        store.mkdir(mode=0o755)
        store.chmod(0o755)
    gone = machine.gcr("checkpoint", "llm", "--image", "warm", "--store", str(store))
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (3, "unsafe_runtime", "running"), gone.body
    assert job.ask() == before


def test_an_image_is_for_the_process_that_is_still_suspended_at_it(machine: Machine) -> None:
    job, before = machine.start()
    away(machine, "old")
    assert image_code(machine, "none") == (3, "no_such_image")
    machine.come_back()
    assert image_code(machine, "old") == (3, "wrong_state")  # it runs
    machine.leave()
    assert image_code(machine, "old") == (3, "wrong_image")  # at another cut
    machine.come_back()
    assert job.ask() == before
    away(machine, "last")
    machine.end(job)
    assert image_code(machine, "last") == (3, "no_such_job")
    other, said = machine.start()
    machine.leave()
    assert image_code(machine, "last") == (3, "wrong_image")  # another process of that name
    machine.come_back()
    assert other.ask() == said


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


def test_images_of_two_jobs_are_written_at_once_and_cleaning_up_harms_neither(machine: Machine) -> None:
    jobs = {name: machine.told(name, "alloc 4 4194304") for name in ("one", "two")}
    said = {name: job.ask() for name, job in jobs.items()}
    store, held = str(store_of(machine)), [machine.folder / f"held-{name}" for name in jobs]
    for name, file in zip(jobs, held, strict=True):
        machine.inject(f"image.commit hold {file}")
        assert machine.gcr("checkpoint", name, "--image", name, "--store", store).code == 0
        until(lambda file=file: file.exists() or None, 30, "everything is written but the manifest")
    assert machine.gcr("prune", "--keep-last", "0", "--store", store).code == 0
    taken = machine.gcr("checkpoint", "one", "--image", "two", "--store", store)
    assert taken.code == 3
    for file in held:
        file.unlink()
    for name, job in jobs.items():
        durable(machine, name)
        assert back(machine, name)["state"] == "running"
        assert job.ask() == said[name]


def test_two_images_of_one_job_are_written_at_once_each_with_the_bytes_of_its_cut(machine: Machine) -> None:
    """The second is begun while the first still reads its copy, and the program goes on changing its memory."""
    job, alone, names = machine.told("llm", "alloc 8 4194304"), machine.folder / "alone", ("one", "two")
    words, stores = ("checkpoint", "llm", "--leave-running", "--image"), (str(store_of(machine)), str(alone))
    held = [machine.folder / f"held-{name}" for name in names]
    for name, file in zip(names, held, strict=True):
        assert machine.gcr(*words, name, "--wait", "durable", "--store", str(alone)).code == 0
        machine.inject(f"image.write hold {file}")
        assert machine.gcr(*words, name, "--store", stores[0]).code == 0
        until(lambda file=file: file.exists() or None, 30, "its helper holds")
        assert (job.ask("free_some 2"), job.ask("alloc 5 4194304")) == ("ok", "ok")
    assert Store(store_of(machine)).images.names() == []
    for file in held:
        file.unlink()
    found = {}
    for name in names:
        durable(machine, name)
        assert machine.gcr("verify", name, "--deep", "--store", stores[0]).code == 0
        found[name] = [names_of_chunks(Path(store), name) for store in stores]
        assert found[name][0] == found[name][1]
    assert found["one"] != found["two"]


def test_the_process_may_end_while_its_image_is_written(machine: Machine) -> None:
    job = machine.told("llm", "alloc 4 4194304")
    machine.inject("image.write hold " + str(machine.folder / "held"))
    assert machine.gcr("checkpoint", "llm", "--image", "warm", "--store", str(store_of(machine))).code == 0
    machine.wait_held()
    machine.end(job)
    (machine.folder / "held").unlink()
    durable(machine, "warm")
    assert machine.gcr("verify", "warm", "--deep", "--store", str(store_of(machine))).code == 0


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
    until(lambda: machine.ask("recover").code == 0 or None, 20, "no command changes the job any more")
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


def leave_running(machine: Machine, name: str, *flags: str) -> dict[str, object]:
    words = ("--image", name, "--leave-running", "--wait", "durable", "--store", str(store_of(machine)))
    gone = machine.gcr("checkpoint", "llm", *words, *flags)
    assert gone.code == 0, gone.body
    return gone.body


@pytest.mark.parametrize("how", [slowly(()), ("--live",)])
def test_an_image_of_a_job_that_runs_on(machine: Machine, how: tuple[str, ...]) -> None:
    job = machine.told("llm", "mixed 30 1000 5000000", "free_some 7")
    before, addresses = job.ask(), job.ask("address")
    said = leave_running(machine, "glance", *how)
    assert (said["state"], said["vram_free_s"], said["vram_after_bytes"]) == ("running", None, None)
    assert said["strategy"] == ("live" if how else "handoff")
    assert (job.ask(), job.ask("address")) == (before, addresses)
    away(machine, "still")  # nothing has changed since
    assert chunks(machine, "glance") == chunks(machine, "still")
    assert Store(store_of(machine)).images.manifest("still").costs.bytes_changed == 0
    assert image_code(machine, "glance") == (3, "wrong_image")  # it ran on
    assert back(machine, "still")["state"] == "running"
    assert job.ask() == before


def test_a_live_checkpoint_takes_what_changed_after_it_was_copied(machine: Machine) -> None:
    """Frees, allocations and new bytes between the copy and the cut."""
    job = machine.told("llm", "mixed 30 1000 5000000")
    held = machine.folder / "held"
    machine.inject(f"checkpoint.copied_live hold {held}")
    words = ("checkpoint", "llm", "--image", "warm", "--live", "--store", str(store_of(machine)), "--wait", "durable")
    going = machine.asking.submit(machine.gcr, *words)
    machine.wait_held()
    assert (job.ask("free_some 3"), job.ask("alloc 5 3000000")) == ("ok", "ok")
    before = job.ask()
    held.unlink()
    gone = going.result(60)
    assert (gone.code, gone.body["strategy"]) == (0, "live"), gone.body
    assert machine.come_back().body["bytes"] == gone.body["bytes"]
    assert job.ask() == before
    away(machine, "again")
    assert back(machine, "again")["state"] == "running"
    assert job.ask() == before
    assert sorted(chunks(machine, "warm")) == sorted(chunks(machine, "again"))


def test_a_slow_image_delays_no_other_job(machine: Machine) -> None:
    job = machine.told("llm", *[f"alloc 1 {size}" for size in range(2_000_000, 2_900_000, 100_000)])
    before = job.ask()
    words = ("--image", "warm", "--max-rate", "4M", "--store", str(store_of(machine)))
    gone = machine.gcr("checkpoint", "llm", *words)
    assert (gone.code, gone.body["durable_s"]) == (0, None)
    machine.come_back()
    assert job.ask() == before
    assert machine.job("llm")["image"]["state"] == "writing"  # type: ignore[index]
    durable(machine, "warm")
    written = Store(store_of(machine)).images.manifest("warm").costs.bytes_written
    took = until(lambda: machine.job("llm")["image"]["durable_s"], 10, "the daemon has heard of it")  # type: ignore[index]
    assert took >= 0.8 * written / 4e6 - 2  # the first group goes at once
    for wrong in ("fast", "0", "-1M", "1T"):
        assert machine.gcr("checkpoint", "llm", "--image", "no", "--max-rate", wrong).code == 2


@pytest.mark.parametrize("flags", [(), ("--leave-running",), ("--live",)])
def test_nothing_is_made_an_image_of_where_nothing_is(machine: Machine, flags: tuple[str, ...]) -> None:
    machine.run("llm", sys.executable, "-c", NOTHING, str(VICTIMS))
    gone = machine.gcr("checkpoint", "llm", "--image", "no", "--store", str(store_of(machine)), *flags)
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (3, "unsupported_state", "running"), gone.body
    assert error["message"] == "an image holds device memory, and no process of llm has any now"
    if "--leave-running" in flags:
        assert error["hint"].startswith("gcr ps llm shows")
    else:
        assert error["hint"] == "gcr checkpoint llm, without --image, suspends it"
        assert machine.gcr("checkpoint", "llm").body["state"] == "suspended", "the hint leads there"
    until(lambda: not machine.children("gcr.image_helper") or None, 10, "the helper ends")


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


def test_a_program_that_is_stopped_meanwhile_has_its_image(machine: Machine) -> None:
    job = machine.told("llm", "alloc 4 4194304")
    before, pid = job.ask(), machine.target("llm")
    machine.inject("checkpoint.vram_free hold " + str(machine.folder / "held"))
    words = ("checkpoint", "llm", "--image", "warm", "--wait", "durable", "--store", str(store_of(machine)))
    going = machine.asking.submit(machine.gcr, *words)
    machine.wait_held()
    os.kill(pid, signal.SIGSTOP)
    (machine.folder / "held").unlink()
    gone = going.result(60)
    os.kill(pid, signal.SIGCONT)
    assert gone.code == 0, gone.body
    assert back(machine, "warm")["state"] == "running"
    assert job.ask() == before


def test_a_program_is_not_ended_for_an_image_that_none_but_it_can_use(machine: Machine) -> None:
    job, before = machine.start()
    words = ("checkpoint", "llm", "--image", "warm", "--stop", "--store", str(store_of(machine)))
    gone = machine.gcr(*words)
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (3, "unsupported_state", "running"), gone.body
    assert "without --stop" in error["hint"]
    assert not store_of(machine).exists()
    assert machine.gcr(*words, "--leave-running").code == machine.gcr("checkpoint", "llm", "--stop").code == 2
    assert machine.settled() == "running" and job.ask() == before


def test_of_a_stranger_there_is_no_image_and_no_job(machine: Machine) -> None:
    stranger = machine.stranger()
    gone = machine.gcr("checkpoint", str(stranger.supervisor.pid), "--image", "no", "--store", str(store_of(machine)))
    assert (gone.code, gone.body["error"]["code"]) == (3, "unsupported_state"), gone.body
    assert machine.gcr("ps").body["jobs"] == []
    words = ("--image", "no", "--stop", "--store", str(store_of(machine)))
    assert machine.gcr("checkpoint", str(stranger.supervisor.pid), *words).code == 3
    assert machine.gcr("ps").body["jobs"] == [], "or the daemon never ends for want of work"
