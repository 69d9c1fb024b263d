"""Whole processes: a job goes into an image, processes and all, and comes back from it as it was."""

import os
import signal
import time

import pytest
from filed import Filed, back, refused, stop
from machine import PATIENCE, Machine, alive, until
from stored import store_of
from worlds import NVIDIA, saved_whole, slowly

from gcr.image.files.manifest import Cut
from gcr.image.store.store import Store

pytestmark = pytest.mark.usefixtures("criu")
IMAGE = ("--image", "night")


def names(machine: Machine) -> list[str]:
    return [*Store(store_of(machine)).images.names()]


@saved_whole()
def test_a_stopped_job_is_in_its_image_alone_and_comes_back_as_it_was_generation_after_generation(
    machine: Machine, job: Filed
) -> None:
    before, addresses = job.ask(), job.ask("address")
    for image in ("one", "two", "three"):
        said = stop(machine, image)
        assert (said["state"], said["cut"], said["vram_after_bytes"]) == ("stopped", "process", 0)
        assert Store(store_of(machine)).images.manifest(image).cut is Cut.PROCESS
        is_nowhere(machine, job)
        if image == "two":
            machine.gcr("daemon", "stop")  # the next one never knew the job
        came = back(machine, image)
        assert (came["state"], came["streamed"], came["resident_bytes"]) == ("running", True, 0)
        assert (job.ask(), job.ask("address")) == (before, addresses)
        row = machine.job("llm")
        assert row
        assert row["pid"] == job.pid
    machine.leave()
    machine.come_back()
    assert job.ask() == before


def is_nowhere(machine: Machine, job: Filed) -> None:
    assert machine.job("llm") is None
    assert not alive(job.pid)
    (row,) = machine.gcr("ps", "--all").body["ended"]
    assert (row["job"], row["state"]) == ("llm", "stopped")


@pytest.mark.parametrize("step", [slowly("behind"), slowly("held"), slowly("left"), "dumped"])
def test_a_stop_that_fails_leaves_a_job_that_runs_on(machine: Machine, job: Filed, step: str) -> None:
    before = job.ask()
    machine.inject(f"checkpoint.{step} fail")
    assert refused(machine, "night") == (4, "injected_fault")
    assert machine.until_state("llm", "running", "suspended") == "running"
    assert (job.ask(), names(machine)) == (before, [])
    stop(machine, "night")
    back(machine, "night")
    assert job.ask() == before


@pytest.mark.parametrize(
    "fault", [slowly("image.commit fail"), "image.commit die", slowly("criu.dump die"), "criu.saved die"]
)
def test_a_helper_that_fails_or_dies_leaves_a_job_that_runs_on(machine: Machine, job: Filed, fault: str) -> None:
    before = job.ask()
    machine.inject(fault)
    assert refused(machine, "night")[0] == 4
    assert machine.until_state("llm", "running", "suspended") == "running"
    assert (job.ask(), names(machine)) == (before, [])


@pytest.mark.parametrize("step", [slowly("held"), slowly("left"), "dumped", "published"])
def test_a_daemon_that_dies_leaves_a_suspended_job(machine: Machine, job: Filed, step: str) -> None:
    before = job.ask()
    machine.inject(f"checkpoint.{step} die")
    machine.gcr("checkpoint", "llm", *IMAGE, "--stop", "--store", str(store_of(machine)))
    assert machine.settled() == "suspended"
    machine.come_back()
    assert job.ask() == before
    if step == "published":
        assert names(machine) == ["night"]
        machine.end_by_pid(job.pid)
        back(machine, "night")
        assert job.ask() == before


def test_a_daemon_that_dies_while_its_image_is_begun_leaves_a_job_that_runs_on(machine: Machine, job: Filed) -> None:
    """Nothing was decided: the helper drops what it has written."""
    before = job.ask()
    machine.inject("checkpoint.behind die")
    machine.gcr("checkpoint", "llm", *IMAGE, "--stop", "--store", str(store_of(machine)))
    assert machine.settled() == "running"
    assert (job.ask(), names(machine)) == (before, [])
    stop(machine, "night")
    back(machine, "night")
    assert job.ask() == before


@pytest.mark.parametrize("fault", ["fill.fitted fail", slowly("fill.flowed fail"), slowly("image.read fail")])
def test_a_device_that_is_not_filled_while_criu_works_is_filled_by_the_restore(
    machine: Machine, job: Filed, fault: str
) -> None:
    before = job.ask()
    stop(machine, "night")
    machine.inject(fault)
    said = back(machine, "night")
    assert (said["streamed"], said["resident_bytes"]) == (True, 0)
    assert job.ask() == before


@pytest.mark.parametrize("fault", ["fail", "die"])
def test_processes_whose_memory_is_not_written_are_ended_and_come_back_later(
    machine: Machine, job: Filed, fault: str
) -> None:
    before = job.ask()
    stop(machine, "night")
    machine.inject(f"restore.fill {fault}")
    done = machine.gcr("restore", *IMAGE, "--store", str(store_of(machine)))
    assert done.body["error"]["code"] == "not_restored"
    assert not alive(job.pid)
    until(lambda: machine.job("llm") is None or None, PATIENCE, "the job is gone")
    back(machine, "night")
    assert job.ask() == before


def test_a_command_that_dies_while_memory_is_written_leaves_a_suspended_job(machine: Machine, job: Filed) -> None:
    """The job was detached: its new supervisor, and the process that has its memory, go on."""
    before, held = job.ask(), machine.folder / "held"
    stop(machine, "night")
    machine.inject(f"restore.fill hold {held}")
    going = machine.begin("restore", *IMAGE, "--store", str(store_of(machine)))
    until(lambda: held.exists() or None, PATIENCE, "CRIU has made the processes")
    going.send_signal(signal.SIGKILL)
    going.wait(PATIENCE)
    held.unlink()
    machine.until_state("llm", "suspended")
    machine.come_back()
    assert job.ask() == before


@pytest.mark.parametrize("ended_by", [None, signal.SIGINT, signal.SIGKILL])
def test_a_device_is_filled_before_there_is_a_process_and_freed_where_none_comes(
    machine: Machine, job: Filed, ended_by: signal.Signals | None
) -> None:
    before, held = job.ask(), machine.folder / "held"
    size = int(str(stop(machine, "night")["bytes"]))
    empty = machine.used()  # but for the context of the worker
    machine.inject(f"restore.registered hold {held}")
    going = machine.begin("restore", *IMAGE, "--store", str(store_of(machine)))
    until(lambda: held.exists() or None, PATIENCE, "the job is registered")
    try:
        until(lambda: machine.used() >= empty + size or None, PATIENCE, "the device is filled")
    except AssertionError as error:
        error.add_note(f"{machine.used()} B of {empty} + {size}, workers {machine.children('gcr.worker')}")
        raise
    assert not alive(job.pid)
    assert machine.job("llm")["state"] == "restoring"
    if ended_by:
        going.send_signal(ended_by)
    held.unlink()
    assert going.wait(PATIENCE) == {None: 0, signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}[ended_by]
    assert ended_by != signal.SIGINT or machine.job("llm") is None
    if ended_by:
        until(lambda: machine.used() == empty or None, PATIENCE, "nothing of it is on the device")
        until(lambda: machine.job("llm") is None or None, PATIENCE, "the job is gone")
        assert not alive(job.pid)
        back(machine, "night")
    assert job.ask() == before


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_restore_waits_for_what_fills_its_device_and_may_be_interrupted(
    machine: Machine, job: Filed, interrupted: bool
) -> None:
    before, held = job.ask(), machine.folder / "held"
    stop(machine, "night")
    empty = machine.used()  # but for the context of the worker
    machine.inject(f"fill.flowed hold {held}")
    going = machine.begin("restore", *IMAGE, "--store", str(store_of(machine)))
    until(lambda: held.exists() or None, PATIENCE, "the device is filled")
    machine.until_state("llm", "suspended")
    time.sleep(0.2)
    assert going.poll() is None
    if interrupted:
        going.send_signal(signal.SIGINT)
        time.sleep(0.2)
    held.unlink()
    assert going.wait(PATIENCE) == (130 if interrupted else 0)
    if interrupted:
        assert machine.settled() == "suspended"
        until(lambda: machine.used() == empty or None, PATIENCE, "nothing of it is on the device")
        machine.come_back()
    assert job.ask() == before


def test_a_new_daemon_waits_for_the_agent(machine: Machine, job: Filed) -> None:
    before = job.ask()
    os.kill(job.pid, signal.SIGSTOP)
    machine.gcr("daemon", "stop")
    running = machine.asking.submit(stop, machine, "night")
    time.sleep(0.3)
    os.kill(job.pid, signal.SIGCONT)
    assert running.result()["state"] == "stopped"
    back(machine, "night")
    assert job.ask() == before


@pytest.mark.parametrize("flags", [("--leave-running",), slowly(("--live", "--leave-running")), slowly(())])
def test_a_job_whose_processes_were_saved_goes_on_and_comes_back_after_its_end(
    machine: Machine, job: Filed, flags: tuple[str, ...]
) -> None:
    before = job.ask()
    words = ("checkpoint", "llm", *IMAGE, "--processes", *flags, "--store", str(store_of(machine)))
    saved = machine.gcr(*words)
    assert saved.code == 0, saved.body
    assert (saved.body["state"], saved.body["cut"]) == ("running" if flags else "suspended", "process")
    if not flags:
        machine.come_back()
    assert job.ask() == before
    job.ask("alloc 3 2097152")
    machine.end_by_pid(job.pid)
    back(machine, "night")
    assert job.ask() == before


@saved_whole()
def test_a_job_that_is_suspended_already_is_stopped_as_it_lies_there(machine: Machine, job: Filed) -> None:
    before = job.ask()
    how = machine.where.options
    assert machine.gcr("checkpoint", "llm", *how).code == 0
    machine.inject("checkpoint.dumped fail")
    assert refused(machine, "night") == (4, "injected_fault")
    assert (machine.until_state("llm", "running", machine.where.suspended), names(machine)) == (
        machine.where.suspended,
        [],
    )
    if machine.where is NVIDIA:
        machine.gcr("daemon", "stop", "--force")  # the next one has read that it is suspended
    said = stop(machine, "night")
    assert (said["state"], said["vram_after_bytes"]) == ("stopped", 0)
    is_nowhere(machine, job)
    back(machine, "night")
    assert job.ask() == before


def test_a_suspended_job_that_cannot_be_stopped_as_it_lies_there_stays_suspended(machine: Machine, job: Filed) -> None:
    """Its context is on the device."""
    before = job.ask()
    assert machine.gcr("checkpoint", "llm", "--data-only").code == 0
    assert refused(machine, "night") == (3, "unsupported_state")
    assert machine.until_state("llm", "running", "data_suspended") == "data_suspended"
    machine.come_back()
    assert (job.ask(), names(machine)) == (before, [])
