"""Images of a job that runs on, each built upon the one before: the copied bytes, the contents, and refusals.

The expected contents are those of an image of the same job suspended: all its bytes were copied and named.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from machine import Machine, Victim, kill, until
from msgspec.structs import replace
from two_devices import Job, three_devices
from worlds import AMD, NVIDIA, ON_DEVICE, at, slowly

from gcr.hashing import hash_bytes
from gcr.image.chunks.chunk import name_of
from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store

MIB = 1 << 20
COUNT = 24  # allocations of a MiB
HOW = [("--live",), ()]


def store_of(machine: Machine) -> Store:
    return Store(machine.folder / "store")


def taken(machine: Machine, name: str, *flags: str) -> dict[str, object]:
    """An image that is durable; the job runs on."""
    words = ("--image", name, "--wait", "durable", "--store", str(machine.folder / "store"))
    gone = machine.gcr("checkpoint", "llm", "--leave-running", *words, *flags)
    assert gone.code == 0, gone.body
    return gone.body


def started(machine: Machine) -> Victim:
    return machine.told("llm", *[f"alloc 1 {MIB}"] * COUNT)


def memory(machine: Machine, name: str) -> dict[int, bytes]:
    """Returns the image's bytes by address in the program; checks that each file of the image is right."""
    store = store_of(machine)
    assert machine.gcr("verify", name, "--deep", "--store", str(store.path)).code == 0
    with ImageReader(store, name) as reader:
        (process,) = reader.manifest.processes
        held = {}
        for handle in process.table.handles:
            held[handle.spec.id] = bytearray(handle.spec.size)
            reader.read(process.table.pid, handle.device, handle.offset, memoryview(held[handle.spec.id]))
        hashes, recorded = store.images.hashes(reader.manifest), b""
        for handle in process.table.handles:
            recorded += hash_bytes(held[handle.spec.id], hashes.key, reader.manifest.chunk_bytes)
        assert recorded == hashes.digests, "the hashes are not of the bytes in the image"
        return {m.address: bytes(held[m.id][m.offset : m.offset + m.size]) for m in process.table.mappings}


def is_what_it_is(machine: Machine, name: str) -> None:
    """The image is of the job as it is now."""
    words = ("--image", f"{name}.whole", "--wait", "durable", "--store", str(machine.folder / "store"))
    assert machine.gcr("checkpoint", "llm", *machine.where.options, *words).code == 0
    machine.come_back()
    assert memory(machine, name) == memory(machine, f"{name}.whole")


@pytest.mark.parametrize(
    ("machine", "how"),
    [
        at(NVIDIA, HOW[0], name="live"),
        at(AMD, HOW[1], slow=True),
        at(NVIDIA, HOW[1], slow=True),
        at(AMD, HOW[0], slow=True, name="live"),
    ],
    indirect=["machine"],
)
def test_what_has_not_changed_is_not_copied(machine: Machine, how: Sequence[str]) -> None:
    job = started(machine)
    first = taken(machine, "one", *how)
    assert (first["parent"], first["bytes_changed"], first["bytes_copied"]) == (None, None, first["bytes"])
    same = taken(machine, "same", *how)
    assert (same["parent"], same["bytes_changed"], same["bytes_written"], same["bytes_copied"]) == ("one", 0, 0, 0)
    assert same["bytes_total"] == same["bytes"] == first["bytes"]
    assert (job.ask("again 3"), job.ask("again 17")) == ("ok", "ok")
    before = job.ask()
    changed = taken(machine, "two", *how)
    assert changed["bytes_changed"] == changed["bytes_copied"] == 2 * MIB
    assert 0 < changed["bytes_written"] <= 2 * MIB  # some of its chunks may be alike
    assert job.ask() == before
    assert memory(machine, "same") == memory(machine, "one")
    is_what_it_is(machine, "two")
    assert job.ask() == before


def test_what_was_freed_goes_and_what_is_new_is_copied(machine: Machine) -> None:
    job = machine.told("llm", f"alloc 8 {8 * MIB}")
    first = taken(machine, "one")
    assert (job.ask("free_some 4"), job.ask(f"alloc 3 {8 * MIB}")) == ("ok", "ok")
    found = taken(machine, "two", "--live")
    assert found["bytes"] == first["bytes"] + 8 * MIB  # type: ignore[operator]
    assert found["bytes_copied"] == 3 * 8 * MIB
    is_what_it_is(machine, "two")


def arena_bytes(machine: Machine) -> int:
    """Returns the bytes of the worker's host memory for copies."""
    (worker,) = machine.children("gcr.worker")
    lines = [line.split() for line in Path(f"/proc/{worker}/maps").read_text().splitlines() if "gcr-arena" in line]
    ends = [[int(end, 16) for end in line[0].split("-")] for line in lines]
    return sum(end - begin for begin, end in ends)


def test_what_was_made_since_the_copy_is_exported_and_has_room_before_the_stop(machine: Machine) -> None:
    job = started(machine)
    held = machine.folder / "held"
    duplicates = Path(f"/proc/{job.supervisor.pid}/fd")  # it keeps one of every export
    machine.inject(f"checkpoint.copied_live hold {held}", f"checkpoint.stop hold {held}")
    going = machine.asking.submit(taken, machine, "one", "--live")
    machine.wait_held()
    assert job.ask(f"alloc 3 {8 * MIB}") == "ok"
    before, room = len([*duplicates.iterdir()]), arena_bytes(machine)
    held.unlink()
    machine.wait_held()
    exported, more = len([*duplicates.iterdir()]) - before, arena_bytes(machine) - room
    held.unlink()
    found = going.result(60)
    assert exported == 3
    assert room > 0 and room + more >= found["bytes"]  # type: ignore[operator]
    is_what_it_is(machine, "one")


@pytest.mark.parametrize("how", [("--live",), slowly(())])
def test_what_it_frees_and_writes_once_it_runs_is_in_the_copy_as_it_was_at_the_cut(
    machine: Machine, how: Sequence[str]
) -> None:
    job = machine.told("llm", f"alloc 6 {8 * MIB}")
    machine.gcr("checkpoint", "llm", "--image", "was", "--wait", "durable", "--store", str(machine.folder / "store"))
    machine.come_back()
    held = machine.folder / "held"
    machine.inject(f"checkpoint.running hold {held}")
    going = machine.asking.submit(taken, machine, "one", *how)
    machine.wait_held()
    assert [job.ask(word) for word in ("free_some 2", f"alloc 1 {8 * MIB}", "again 0")] == ["ok"] * 3
    held.unlink()
    going.result(60)
    assert memory(machine, "one") == memory(machine, "was")
    taken(machine, "two")
    is_what_it_is(machine, "two")


def test_it_is_built_upon_one_that_suspended_the_job(machine: Machine) -> None:
    """The driver gave the job back, so its device computes nothing for gcr beside it: all is copied."""
    job = started(machine)
    words = ("--image", "one", "--wait", "durable", "--store", str(machine.folder / "store"))
    assert machine.gcr("checkpoint", "llm", *machine.where.options, *words).code == 0
    machine.come_back()
    job.ask("again 5")
    found = taken(machine, "two", "--live")
    assert (found["parent"], found["bytes_copied"], found["bytes_changed"]) == ("one", found["bytes"], MIB)
    assert machine.gcr("checkpoint", "llm", *words[:1], "three", *words[2:]).body["parent"] == "two"
    machine.come_back()
    is_what_it_is(machine, "two")


def test_after_another_daemon_came(machine: Machine) -> None:
    """Everything is in the image. It does not know whether the driver ever gave the job back: all is copied."""
    job = started(machine)
    taken(machine, "one", "--live")
    assert machine.gcr("daemon", "stop").code == 0
    until(lambda: not machine.children("gcr.worker") or None, 20, "the workers end")
    job.ask("again 7")
    found = taken(machine, "two", "--live")
    assert (found["parent"], found["bytes_copied"], found["bytes_changed"]) == ("one", found["bytes"], MIB)
    is_what_it_is(machine, "two")


def test_one_of_another_process_is_no_parent(machine: Machine) -> None:
    job = started(machine)
    taken(machine, "one")
    machine.end(job)
    started(machine)
    found = taken(machine, "two")
    assert (found["parent"], found["parent_refused"], found["bytes_copied"]) == (None, None, found["bytes"])
    assert found["bytes_written"] == 0


@pytest.mark.skipif(ON_DEVICE, reason="of three devices")
@pytest.mark.parametrize("how", [HOW[0], slowly(HOW[1])])
def test_of_two_devices(tmp_path: Path, how: Sequence[str]) -> None:
    machine = three_devices(tmp_path)
    try:
        job = Job.start(machine)
        first = taken(machine, "one", *how)
        same = taken(machine, "same", *how)
        assert (same["parent"], same["bytes_copied"], same["bytes_changed"]) == ("one", 0, 0)
        job.work(1)
        changed = taken(machine, "two", *how)
        assert changed["bytes_changed"] == changed["bytes_copied"] > 0
        assert changed["bytes_copied"] < first["bytes"]  # type: ignore[operator]
        is_what_it_is(machine, "two")
        job.is_whole()
    finally:
        machine.close()


@pytest.mark.parametrize("step", ["checkpoint.copied_live", slowly("image.write"), slowly("image.commit")])
@pytest.mark.parametrize("replaced", [slowly(False), True])
def test_the_parent_may_be_removed_meanwhile(machine: Machine, step: str, replaced: bool) -> None:
    """And another image take its name; what of its chunks the child needs stays."""
    job = started(machine)
    taken(machine, "one")
    job.ask("again 2")
    store, held = str(machine.folder / "store"), machine.folder / "held"
    machine.inject(f"{step} hold {held}")
    going = machine.asking.submit(taken, machine, "two", "--live")
    machine.wait_held()
    assert machine.gcr("rm", "one", "--store", store).code == 0
    assert machine.gcr("prune", "--keep-last", "0", "--store", store).code == 0
    if replaced:
        other = machine.run("other", *machine.allocating("--interactive", "--steps", "60"))
        words = ("--image", "one", "--leave-running", "--wait", "durable", "--store", store)
        assert machine.gcr("checkpoint", "other", *words).code == 0
        machine.end(other)
    held.unlink()
    found = going.result(60)
    assert (found["parent"], found["bytes_copied"]) == ("one", MIB)
    is_what_it_is(machine, "two")


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "what",  # tests/unit/test_parent.py has all three
    ["hashes", slowly("chunks"), slowly("pack")],
)
def test_one_that_is_damaged_is_no_parent(machine: Machine, what: str) -> None:
    """It is said, everything is copied, and the chain begins anew."""
    job = started(machine)
    taken(machine, "one")
    store = store_of(machine)
    if what == "pack":
        (pack,) = store.packs.folder.iterdir()
        pack.unlink()
    else:
        damaged(store.images.folder / f"one.{what}")
    assert machine.gcr("verify", "one", "--store", str(store.path)).code == 6
    found = taken(machine, "two", "--live")
    assert (found["parent"], found["bytes_copied"], found["bytes_changed"]) == (None, found["bytes"], None)
    assert "one" in str(found["parent_refused"])
    if what != "hashes":
        assert store.images.hashes(store.images.manifest("two")).key
    job.ask("again 1")
    third = taken(machine, "three")
    assert (third["parent"], third["parent_refused"], third["bytes_copied"]) == ("two", None, MIB)
    is_what_it_is(machine, "three")


def test_an_older_one_is_built_upon_where_the_newest_is_damaged(machine: Machine) -> None:
    job = started(machine)
    taken(machine, "one")
    job.ask("again 1")
    taken(machine, "two")
    damaged(store_of(machine).images.folder / "two.hashes")
    found = taken(machine, "three")
    assert (found["parent"], found["bytes_copied"]) == ("one", MIB)
    assert "two" in str(found["parent_refused"])
    is_what_it_is(machine, "three")


def test_a_damaged_hash_does_not_prevent_a_restore(machine: Machine) -> None:
    job = started(machine)
    before, store = job.ask(), store_of(machine)
    words = ("--image", "one", "--wait", "durable", "--store", str(store.path))
    assert machine.gcr("checkpoint", "llm", *machine.where.options, *words).code == 0
    damaged(store.images.folder / "one.hashes")
    assert machine.gcr("verify", "one", "--store", str(store.path)).code == 6
    assert machine.gcr("restore", "--image", "one", "--store", str(store.path)).code == 0
    assert job.ask() == before


@pytest.mark.parametrize("who", ["gcr.daemon", slowly("gcr.worker"), slowly("gcr.image_helper")])
@pytest.mark.parametrize(
    "step",
    ["copied_live", slowly("drained"), slowly("running")],
)
def test_the_job_is_whole_and_can_leave_after_any_death(machine: Machine, who: str, step: str) -> None:
    """No copy is left that lacks bytes of the parent: the next checkpoint has every byte."""
    job = started(machine)
    taken(machine, "one", "--live")
    job.ask("again 4")
    before, held = job.ask(), machine.folder / "held"
    machine.inject(f"checkpoint.{step} hold {held}")
    words = {"image": "two", "leave_running": True, "live": True, "store": str(machine.folder / "store")}
    going = machine.asking.submit(machine.ask, "checkpoint", "llm", **words)
    machine.wait_held()
    kill(*machine.children(who))
    held.unlink()
    assert going.result(60).code in (0, 3, 4)
    assert machine.until_state("llm", "running") == "running"
    machine.leave()
    machine.come_back()
    assert job.ask() == before
    assert taken(machine, "three", "--live")["parent"] in ("one", "two")
    is_what_it_is(machine, "three")


@pytest.mark.parametrize("step", ["drained", "running"])
def test_a_failure_leaves_nothing_of_the_copy(machine: Machine, step: str) -> None:
    job = started(machine)
    taken(machine, "one", "--live")
    before = job.ask()
    machine.inject(f"checkpoint.{step} fail")
    words = ("--image", "two", "--live", "--leave-running", "--store", str(machine.folder / "store"))
    assert machine.gcr("checkpoint", "llm", *words).code == 4
    machine.leave()
    machine.come_back()
    assert job.ask() == before


# ---- paranoid -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [HOW[0], slowly(HOW[1])])
def test_paranoid_copies_and_compares_everything(machine: Machine, how: Sequence[str]) -> None:
    job = started(machine)
    taken(machine, "one", *how, "--paranoid")
    job.ask("again 4")
    found = taken(machine, "two", *how, "--paranoid")
    assert found["bytes_changed"] == MIB
    assert found["bytes_copied"] >= found["bytes"]
    is_what_it_is(machine, "two")


def test_a_paranoid_live_checkpoint_comes_back(machine: Machine) -> None:
    job = started(machine)
    before = job.ask()
    words = ("--image", "one", "--live", "--paranoid", "--wait", "durable", "--store", str(machine.folder / "store"))
    assert machine.gcr("checkpoint", "llm", *machine.where.options, *words).code == 0
    machine.come_back()
    assert job.ask() == before


def forge(store: Store, name: str, hashes: bytes) -> None:
    """An image says of its chunks what is not so, and everything vouches for it."""
    manifest = store.images.manifest(name)
    manifest = replace(manifest, beside=replace(manifest.beside, hashes=name_of(hashes)))
    (store.images.folder / f"{name}.hashes").write_bytes(hashes)
    (store.images.folder / f"{name}.json").write_bytes(manifest.to_bytes())


def test_paranoid_finds_what_a_hash_missed(machine: Machine) -> None:
    """No hash misses anything: the parent has the hashes of what came after it. What is found so is not written."""
    job, store = started(machine), store_of(machine)
    taken(machine, "one")
    job.ask("again 4")
    before = job.ask()
    taken(machine, "two")
    forge(store, "one", store.images.hashes(store.images.manifest("two")).to_bytes())
    assert machine.gcr("rm", "two", "--store", str(store.path)).code == 0
    words = ("checkpoint", "llm", "--leave-running", "--wait", "durable", "--store", str(store.path))
    believed = machine.gcr(*words, "--image", "believed")
    assert (believed.code, believed.body["bytes_copied"], believed.body["bytes_changed"]) == (0, 0, 0)
    assert machine.gcr("rm", "believed", "--store", str(store.path)).code == 0
    for how in HOW:
        found = machine.gcr(*words, "--image", "not", "--paranoid", *how)
        error = found.body["error"]
        assert (found.code, error["code"], error["state"]) == (4, "hash_missed", "running"), found.body
        assert "not" not in store.images.names()
        assert job.ask() == before
    assert "hash" in machine.logs()["gcrd.log"]
