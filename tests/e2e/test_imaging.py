"""Images of jobs: written while the job is away or back again, and read by the very processes that they are of."""

import os
import signal
import sys
from pathlib import Path

import pytest
from machine import VICTIMS, Machine, until
from stored import MIB, away, back, chunks, durable, image_code, leave_running, names_of_chunks, store_of
from worlds import everywhere, slowly

from gcr.image.store.store import Store

NOTHING = """
import sys
sys.path.insert(0, sys.argv[1])
from cuda_calls import primary_context
primary_context()
print("ready", flush=True)
sys.stdin.read()
"""


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


def test_of_a_stranger_there_is_no_image_and_no_job(machine: Machine) -> None:
    stranger = machine.stranger()
    gone = machine.gcr("checkpoint", str(stranger.supervisor.pid), "--image", "no", "--store", str(store_of(machine)))
    assert (gone.code, gone.body["error"]["code"]) == (3, "unsupported_state"), gone.body
    assert machine.gcr("ps").body["jobs"] == []
    words = ("--image", "no", "--stop", "--store", str(store_of(machine)))
    assert machine.gcr("checkpoint", str(stranger.supervisor.pid), *words).code == 3
    assert machine.gcr("ps").body["jobs"] == [], "or the daemon never ends for want of work"
