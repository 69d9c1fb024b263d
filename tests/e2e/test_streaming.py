"""Checkpoints that the host has no room for: straight to the image, through a ring."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from little_room import LARGE, MIB, MIDDLE, MOST, RING, SLOT, large, room, words
from machine import VICTIMS, Machine, Victim, kill, until
from stored import store_of
from two_devices import Job, three_devices
from worlds import AMD, ASCEND, NOEXPORT, NVIDIA, at, slowly

from gcr.image.store.store import Store


def comes_back(machine: Machine, job: Victim, before: str) -> None:
    """Brings the job back from the image alone, through a ring as well."""
    machine.come_back()
    assert job.ask() == before


def nothing_is_left(machine: Machine) -> None:
    until(lambda: not machine.children("gcr.image_helper") or None, 20, "the helper ends")
    store = Store(store_of(machine))
    assert (store.images.names(), list(store.packs.folder.iterdir())) == ([], [])
    assert not [
        path.name for path in store.images.folder.iterdir() if path.name != "warm.json.new"
    ]  # no process has its claim


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


# ---- what goes wrong ---------------------------------------------------------------------------------------------

STEPS = ["prepared", "handed_over", "filled_0", "filled_7", "drained", "staged", "durable"]


@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_a_failure_at_any_step_takes_everything_back(machine: Machine) -> None:
    job, before = large(machine)
    for step in STEPS:
        machine.inject(f"checkpoint.{step} fail")
        gone = machine.gcr(*words(machine))
        assert (gone.code, gone.body["error"]["code"]) == (4, "injected_fault"), (step, gone.body)
        assert job.ask() == before
        nothing_is_left(machine)
    assert machine.gcr(*words(machine)).code == 0
    comes_back(machine, job, before)


@pytest.mark.parametrize("step", [*map(slowly, ("image.take", "image.write", "image.published")), "image.commit"])
def test_a_helper_that_dies_leaves_no_image(machine: Machine, step: str) -> None:
    job, before = large(machine)
    machine.inject(f"{step} die")
    gone = machine.gcr(*words(machine))
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (4, "image_failed", "running"), gone.body
    assert job.ask() == before
    assert Store(store_of(machine)).images.names() == []
    assert machine.gcr(*words(machine)).code == 0  # what the dead one has claimed is free
    comes_back(machine, job, before)


def test_an_image_that_the_record_names_is_not_taken_away_again(machine: Machine) -> None:
    job, before = large(machine)
    machine.inject("checkpoint.decided fail")
    assert machine.gcr(*words(machine)).code == 4
    assert Store(store_of(machine)).images.names() == ["warm"]
    machine.until_state("llm", "running")
    kept = machine.job("llm")
    assert kept and kept["only_in"] is None
    assert job.ask() == before


def test_a_disk_that_fills_up_takes_everything_back(machine: Machine) -> None:
    """The largest file that the helper may write stands for it."""
    job, before = large(machine)
    limits = resource.prlimit(machine.daemon(), resource.RLIMIT_FSIZE)
    resource.prlimit(machine.daemon(), resource.RLIMIT_FSIZE, (20 * MIB, limits[1]))
    gone = machine.gcr(*words(machine))
    error = gone.body["error"]
    assert (gone.code, error["code"], error["state"]) == (4, "image_failed", "running"), gone.body
    assert "EFBIG" in error["message"]
    assert job.ask() == before
    nothing_is_left(machine)
    found = machine.job("llm")
    assert found and found["image"]["state"] == "failed"
    resource.prlimit(machine.daemon(), resource.RLIMIT_FSIZE, limits)
    assert machine.gcr(*words(machine)).code == 0
    comes_back(machine, job, before)


@pytest.mark.parametrize("who", ["gcr.worker", "gcr.image_helper", slowly("gcr.control_helper")])
def test_a_death_in_the_middle_takes_everything_back(machine: Machine, who: str) -> None:
    job, before = large(machine)
    strike(machine, lambda: machine.children(who), MIDDLE)
    machine.until_state("llm", "running", "suspended")
    if machine.job("llm")["state"] == "running":  # type: ignore[index]
        assert job.ask() == before
        assert Store(store_of(machine)).images.names() == []
        assert machine.gcr(*words(machine)).code == 0
    comes_back(machine, job, before)


@pytest.mark.parametrize(
    "step", [MIDDLE, "checkpoint.decided", slowly("checkpoint.durable"), slowly("checkpoint.committed_one")]
)
def test_the_daemon_dies(machine: Machine, step: str) -> None:
    """Before the decision the job runs on, and an image that is durable by then is of no use to it."""
    job, before = large(machine)
    strike(machine, lambda: machine.children("gcr.daemon"), step)
    state = machine.settled()
    decided = step in ("checkpoint.decided", "checkpoint.committed_one")
    assert state == ("suspended" if decided else "running")
    if decided:
        kept = machine.job("llm")
        assert kept and kept["only_in"] == {"image": "warm", "store": str(store_of(machine))}
        comes_back(machine, job, before)
        return
    assert job.ask() == before
    store = str(store_of(machine))
    if step == "checkpoint.durable":
        assert machine.gcr("restore", "--image", "warm", "--store", store).body["error"]["code"] == "wrong_state"
        room(machine, 256 * MIB)
        machine.leave()
        assert machine.gcr("restore", "--image", "warm", "--store", store).body["error"]["code"] == "wrong_image"
        machine.come_back()
        assert machine.gcr("rm", "warm", "--store", store).code == 0
    room(machine, RING)
    assert machine.gcr(*words(machine)).code == 0
    comes_back(machine, job, before)


def strike(machine: Machine, who: Callable[[], list[int]], step: str) -> None:
    with machine.held_at(step):
        running = machine.begin(*words(machine))
        machine.wait_held()
        condemned = who()
        assert condemned
        kill(*condemned)
    running.communicate(timeout=60)


def test_the_supervisor_dies_in_the_middle(machine: Machine) -> None:
    job, before = large(machine)
    strike(machine, lambda: [job.supervisor.pid], MIDDLE)
    if machine.until_state("llm", "running", "suspended") == "suspended":
        comes_back(machine, job, before)
    assert job.ask() == before


def test_daemon_and_supervisor_die_before_the_decision(machine: Machine) -> None:
    """The image alone has the bytes, and the daemon had left word of it: the job is suspended there."""
    job, before = large(machine)
    strike(machine, lambda: [job.supervisor.pid, *machine.children("gcr.daemon")], "checkpoint.durable")
    store = str(store_of(machine))
    assert machine.gcr("rm", "warm", "--store", store).body["error"]["code"] == "image_needed"
    machine.gcr("recover")
    machine.until_state("llm", "suspended")
    kept = machine.job("llm")
    assert kept and kept["only_in"] == {"image": "warm", "store": store}
    comes_back(machine, job, before)


def test_daemon_supervisor_and_image_are_gone_before_the_decision(machine: Machine) -> None:
    """No process has the memory any more, and no image: that is said."""
    job, _ = large(machine)

    def condemned() -> list[int]:
        (store_of(machine) / "images" / "warm.json").unlink()
        return [job.supervisor.pid, *machine.children("gcr.daemon")]

    strike(machine, condemned, "checkpoint.durable")
    machine.gcr("recover")
    machine.until_state("llm", "lost")
    assert "not decided" in machine.logs()["gcrd.log"]


def test_the_target_dies_in_the_middle(machine: Machine) -> None:
    job, _ = large(machine)
    strike(machine, lambda: machine.targets("llm"), MIDDLE)
    assert job.supervisor.wait(timeout=20) == 128 + signal.SIGKILL
    until(lambda: machine.job("llm") is None or None, 20, "the job is forgotten")
    nothing_is_left(machine)


def test_a_caller_that_leaves_in_the_middle_has_everything_taken_back(machine: Machine) -> None:
    job, before = large(machine)
    with machine.held_at(MIDDLE):
        running = machine.begin(*words(machine))
        machine.wait_held()
        machine.leaves(lambda: running.send_signal(signal.SIGINT))
    assert running.wait(timeout=30) == 130
    machine.until_state("llm", "running")
    assert job.ask() == before
    nothing_is_left(machine)


def test_the_callers_deadline_counts_and_no_other(machine: Machine) -> None:
    machine.extra |= {"GCR_DRAIN_S": "0.5"}
    job, before = large(machine)
    late = machine.gcr(*words(machine, "--max-rate", "8M", "--timeout", "3"))
    assert (late.code, late.body["error"]["code"]) == (4, "deadline_passed"), late.body
    assert job.ask() == before
    nothing_is_left(machine)
    slow = machine.gcr(*words(machine, "--max-rate", "16M"))
    assert slow.code == 0 and slow.body["drain_s"] > 1.5
    comes_back(machine, job, before)


# ---- the only copy -----------------------------------------------------------------------------------------------


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


def test_a_helper_that_is_stopped_keeps_no_job_stopped(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller has named a deadline, and the disk may take its time; this one is silent."""
    monkeypatch.setenv("GCR_STORE_S", "3")
    job, before = large(machine)
    held = machine.folder / "held"
    machine.inject(f"image.take hold {held}")
    caller = machine.begin(*words(machine))
    machine.wait_held()
    (helper,) = machine.children("gcr.image_helper")
    os.kill(helper, signal.SIGSTOP)
    out, _ = caller.communicate(timeout=25)
    error = json.loads(out)["error"]
    assert (caller.returncode, error["code"], error["state"]) == (4, "image_failed", "running"), error
    assert "has not answered for 3 s" in error["message"]
    assert job.ask() == before
    held.unlink()
    os.kill(helper, signal.SIGCONT)
    nothing_is_left(machine)
    assert machine.gcr(*words(machine)).body["streamed"]
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
