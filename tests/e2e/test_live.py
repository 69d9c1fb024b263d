"""Live images against a program that stamps its buffers round after round: what was copied when can be told by them.

Each is built upon the one before, in a chain that is broken now and then.

The oracle is what the program says of itself and the bytes of the image, never what gcr says of either.
"""

import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from machine import VICTIMS, Machine, Victim, kill, until
from worlds import AMD, NVIDIA, ON_DEVICE, SLOW, at

sys.path.insert(0, str(VICTIMS))

from epoch_victim import stamp

from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store

SIZE = 3 << 20
BUFFERS = 6
FAST = 8
MANY, SEEDS = (100, 4) if ON_DEVICE else (1000, 20)
CROWDED = 112 << 20  # bytes of a device: what the program has, contexts, and hardly more
CHAIN = 9  # images that are built upon one another


@dataclass(frozen=True)
class Span:
    """Rounds of one thread that may be seen: from the last it had finished before, to the last it had begun after."""

    first: int
    last: int


def rounds(job: Victim) -> list[tuple[int, int]]:
    return [(finished, begun) for finished, begun in json.loads(job.ask())]


def contents(store: Store, name: str, addresses: Sequence[int], size: int) -> list[bytes]:
    """Returns an image's bytes at addresses of its only process."""
    with ImageReader(store, name) as reader:
        table = reader.manifest.processes[0].table
        memory = {}
        for handle in table.handles:
            memory[handle.spec.id] = bytearray(handle.spec.size)
            reader.read(table.pid, handle.device, handle.offset, memoryview(memory[handle.spec.id]))
    found = []
    for address in addresses:
        data = bytearray()
        while len(data) < size:
            at = address + len(data)
            (place,) = (m for m in table.mappings if m.address <= at < m.address + m.size)
            start = at - place.address + place.offset
            data += memory[place.id][start : min(place.offset + place.size, start + size - len(data))]
        found.append(bytes(data))
    return found


def check(buffers: Sequence[bytes], span: Span) -> None:
    """One thread's: each of one stamp, and all from one moment."""
    newest = span.last
    for number, data in enumerate(buffers):
        word = data[:4]
        assert data == word * (len(data) // 4), f"buffer {number} is of several rounds"
        said = int.from_bytes(word, "little")
        possible = [e for e in range(max(1, span.first), newest + 1) if stamp(number, e) == said]
        assert possible, f"buffer {number} holds {said:#x}, and is to be of a round from {span.first} to {newest}"
        newest = max(possible)
        if number == 0:
            span = Span(max(span.first, newest - 1), span.last)


def check_image(store: Store, name: str, where: Sequence[Sequence[int]], spans: Sequence[Span]) -> None:
    """Checks the buffers of every thread, at the addresses that the program told."""
    found = iter(contents(store, name, [address for buffers in where for address in buffers], SIZE))
    for buffers, span in zip(where, spans, strict=True):
        check([next(found) for _ in buffers], span)


def glance(
    machine: Machine, job: Victim, name: str, chance: random.Random, live: bool
) -> tuple[list[Span], dict[str, object]]:
    """An image of the running job, and the report; with `live` some rounds pass between the copy and the cut."""
    held = machine.folder / f"held-{name}"
    if live:
        machine.inject(f"checkpoint.copied_live hold {held}")
    before = rounds(job)
    words = {
        "image": name,
        "leave_running": True,
        "live": live,
        "wait": "durable",
        "store": str(machine.folder / "store"),
    }
    going = machine.asking.submit(machine.ask, "checkpoint", "llm", **words)
    if live:
        until(lambda: held.exists() or None, 30, "everything was copied")
        copied, more = rounds(job), chance.randrange(4)
        until(lambda: rounds(job)[0][0] >= copied[0][0] + more or None, 30, "some rounds pass")
        time.sleep(chance.uniform(0, 0.01))
        held.unlink()
    gone = going.result(60)
    assert gone.code == 0, gone.body
    spans = [Span(finished, begun) for (finished, _), (_, begun) in zip(before, rounds(job), strict=True)]
    return spans, gone.body


def schedules(machine: Machine, count: int, seed: int) -> list[float]:
    """Returns for each image the share of bytes copied at the cut that went by a snapshot."""
    chance = random.Random(seed)
    words = ("--vendor", machine.vendor, "--seed", str(seed), "--bytes", str(SIZE), "--buffers", str(BUFFERS))
    job = machine.run("llm", sys.executable, str(VICTIMS / "epoch_victim.py"), *words)
    where = json.loads(job.ask("where"))
    store = Store(machine.folder / "store")
    parent, spared, shares = None, 0, list[float]()
    for number in range(count):
        name, live = f"i{number}", number % 4 != 3
        spans, said = glance(machine, job, name, chance, live)
        check_image(store, name, where, spans)
        assert said["parent"] == parent
        if not live and said["bytes_copied"]:
            shares.append(said["snapshot_bytes"] / said["bytes_copied"])  # type: ignore[operator]
        spared += not live and said["bytes_copied"] < said["bytes"]
        doomed = [each for each in (parent, name) if each and (each != name or number % CHAIN == CHAIN - 1)]
        store.remove(doomed)
        parent = None if name in doomed else name
    assert spared, "no image took anything from the one before"
    first = rounds(job)
    until(
        lambda: all(now > then for (now, _), (then, _) in zip(rounds(job), first, strict=True)) or None, 30, "it runs"
    )
    return shares


@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_an_image_is_of_one_moment(machine: Machine) -> None:
    assert set(schedules(machine, FAST, 1)) == {1.0}


@pytest.mark.slow
@pytest.mark.skipif(ON_DEVICE, reason="a real device has the memory that it has")
def test_an_image_is_of_one_moment_where_there_is_hardly_room_for_a_snapshot(machine: Machine) -> None:
    machine.memory = CROWDED
    assert min(schedules(machine, FAST, 2)) < 1.0


@pytest.mark.slow
@pytest.mark.timeout(400)  # beside three others
@pytest.mark.parametrize("seed", range(SEEDS))
def test_very_many_images_are_of_one_moment_each(machine: Machine, seed: int) -> None:
    schedules(machine, MANY // SEEDS, 100 + seed)


STEPS = ("prepared", "copied_live", "stop", "quiesced", "drained", "running")
BY_SNAPSHOT = ("snapshotted", "running", "reading", "drained")  # without a live copy there is something to copy


@pytest.mark.parametrize(
    ("who", "steps", "live"),
    [
        ("gcr.daemon", STEPS, True),
        *(pytest.param(who, STEPS, True, marks=SLOW) for who in ("gcr.worker", "gcr.image_helper")),
        *((who, BY_SNAPSHOT, False) for who in ("gcr.daemon", "gcr.worker")),
        pytest.param("gcr.image_helper", BY_SNAPSHOT, False, marks=SLOW),
        ("supervisor", ["drained"], True),
        ("supervisor", ["reading"], False),
    ],
)
def test_the_job_runs_on_after_any_death_in_it(machine: Machine, who: str, steps: Sequence[str], live: bool) -> None:
    """Each of its steps; afterwards it is what it was, and can be taken off its device."""
    job = machine.told("llm", "mixed 12 1000 5000000")
    store = str(machine.folder / "store")
    for number, step in enumerate(steps):
        assert job.ask("again 3") == "ok"
        before = job.ask()
        held = machine.folder / f"held-{step}"
        machine.inject(f"checkpoint.{step} hold {held}")
        words = {"image": f"i{number}", "leave_running": True, "live": live, "wait": "durable", "store": store}
        going = machine.asking.submit(machine.ask, "checkpoint", "llm", **words)
        until(lambda held=held: held.exists() or None, 30, "the checkpoint comes to the step")
        kill(*([job.supervisor.pid] if who == "supervisor" else machine.children(who)))
        held.unlink()
        answer = going.result(60)
        assert answer.code in (0, 3, 4), answer.body
        assert machine.until_state("llm", "running") == "running"
        if who == "supervisor":
            break
        assert job.ask() == before, step
        for name in Store(machine.folder / "store").images.names():
            assert machine.gcr("verify", name, "--deep", "--store", store).code == 0
    machine.leave()
    machine.come_back()
    if who != "supervisor":
        assert job.ask() == before


def test_it_may_end_in_the_middle_of_it(machine: Machine) -> None:
    for step in STEPS:
        job = machine.told("llm", "mixed 12 1000 5000000")
        held = machine.folder / f"held-{step}"
        machine.inject(f"checkpoint.{step} hold {held}")
        words = {"image": "no", "leave_running": True, "live": True, "wait": "durable"}
        where = {"store": str(machine.folder / "store")}
        going = machine.asking.submit(machine.ask, "checkpoint", "llm", **words, **where)
        until(lambda held=held: held.exists() or None, 30, "the checkpoint comes to the step")
        kill(machine.target("llm"))
        held.unlink()
        assert going.result(60).code in ((0,) if step == "running" else (3, 4)), step
        until(lambda: machine.job("llm") is None or None, 30, "the job is forgotten")
        job.supervisor.wait(20)
        assert Store(machine.folder / "store").images.names() == (["no"] if step == "running" else [])
