"""Images of one job whose copies overlap: the next cut is made while the copies of earlier ones are still being read.

The oracle is what the program says of itself and the bytes of each image (test_live), never what gcr says of either.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from little_room import room
from machine import VICTIMS, Answer, Machine, Victim, kill, until
from test_live import Span, check_image, rounds
from worlds import AMD, NVIDIA, at

from gcr.image.store.store import Store

MIB = 1 << 20
EACH = 8 * MIB
SIZE = 3 * MIB
BUFFERS = 6
ROUNDS = 3  # that pass between two cuts, so that no two images can be of one moment


@dataclass
class Images:
    """Images of job `llm`, of which several may be under way."""

    machine: Machine
    asking: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4))
    going: dict[str, "Future[Answer]"] = field(default_factory=dict)
    callers: dict[str, "subprocess.Popen[str]"] = field(default_factory=dict)  # of those that `leave`

    @property
    def store(self) -> Store:
        return Store(self.machine.folder / "store")

    def begin(self, name: str, **more: object) -> None:
        words = {"image": name, "leave_running": True, "wait": "durable", "store": str(self.store.path), **more}
        self.going[name] = self.asking.submit(self.machine.ask, "checkpoint", "llm", **words)

    def begin_held(self, name: str, step: str = "reading", **more: object) -> None:
        """Begins one, which waits at the step until `release`."""
        held = self.held(name)
        self.machine.inject(f"checkpoint.{step} hold {held}")
        self.begin(name, **more)
        until(lambda: held.exists() or self.going[name].done(), 30, "it comes to the step")
        assert held.exists(), self.ended(name).body

    def begin_held_by_a_caller(self, name: str) -> None:
        """Does the same by a process of its own, which may leave."""
        held, store = self.held(name), str(self.store.path)
        self.machine.inject(f"checkpoint.reading hold {held}")
        words = ("--leave-running", "--image", name, "--wait", "durable", "--store", store)
        self.callers[name] = self.machine.begin("checkpoint", "llm", *words)
        until(lambda: held.exists() or None, 30, "it comes to the step")

    def leave(self, name: str) -> None:
        """Has the caller leave; the image goes on as far as it does then."""
        self.machine.leaves(self.callers[name].kill)
        self.held(name).unlink()

    def held(self, name: str) -> Path:
        return self.machine.folder / f"held-{name}"

    def release(self, name: str) -> Answer:
        self.held(name).unlink()
        return self.ended(name)

    def ended(self, name: str) -> Answer:
        return self.going[name].result(60)

    def taken(self, name: str, **more: object) -> dict[str, object]:
        self.begin(name, **more)
        assert self.ended(name).code == 0, self.ended(name).body
        return self.ended(name).body


@pytest.fixture
def images(machine: Machine) -> Iterator[Images]:
    made = Images(machine)
    yield made
    for name in (*made.going, *made.callers):
        made.held(name).unlink(missing_ok=True)
    made.asking.shutdown()


@dataclass(frozen=True)
class Stamping:
    """A program that stamps its buffers round after round, at addresses that it told."""

    job: Victim
    where: Sequence[Sequence[int]]

    @classmethod
    def on(cls, machine: Machine) -> "Stamping":
        words = ("--vendor", machine.vendor, "--bytes", str(SIZE), "--buffers", str(BUFFERS))
        job = machine.run("llm", sys.executable, str(VICTIMS / "epoch_victim.py"), *words)
        return cls(job, json.loads(job.ask("where")))

    def go_on(self) -> None:
        """Returns once the program has come some rounds further: it runs."""
        first = rounds(self.job)
        further = lambda: all(n[0] > f[0] + ROUNDS for n, f in zip(rounds(self.job), first, strict=True))  # noqa: E731
        until(lambda: further() or None, 30, "it runs")

    @contextmanager
    def seen(self, spans: list[Span]) -> Iterator[None]:
        """Notes the rounds that an image may show whose cut is within the block."""
        before = rounds(self.job)
        yield
        spans += [Span(done, begun) for (done, _), (_, begun) in zip(before, rounds(self.job), strict=True)]

    def check(self, store: Store, name: str, spans: Sequence[Span]) -> None:
        check_image(store, name, self.where, spans)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_each_of_three_is_of_the_moment_of_its_own_cut(machine: Machine, images: Images, order: Sequence[int]) -> None:
    """The program stamps on between the cuts, and while the copies are read, in either order."""
    machine.memory = 512 * MIB
    program, names = Stamping.on(machine), ("a", "b", "c")
    spans: dict[str, list[Span]] = {name: [] for name in names}
    for name in names:
        with program.seen(spans[name]):
            images.begin_held(name, live=name == "b")
        program.go_on()
    for number in order:
        assert images.release(names[number]).code == 0, images.ended(names[number]).body
        program.go_on()
    for name in names:
        assert images.ended(name).body["snapshot_bytes"]
        program.check(images.store, name, spans[name])
    assert machine.job("llm")["image"]["name"] == "c"  # type: ignore[index]
    images.taken("d")


def names_of_chunks(store: Store, name: str) -> Sequence[bytes]:
    found = store.images.references(store.images.manifest(name))
    return found.names(0, len(found))


@dataclass
class Two:
    """Two images under way, `one` and `other`, whose snapshots are not read yet; `alone` has their right chunks."""

    machine: Machine
    images: Images
    job: Victim
    rest: int  # bytes that the device has in use without snapshots
    alone: dict[str, Sequence[bytes]]

    @classmethod
    def under_way(cls, machine: Machine, images: Images, leaving: str = "") -> "Two":
        """Makes an image of the same bytes before each, in another store. `leaving`: one whose caller may leave."""
        two = cls.first_under_way(machine, images, leaving)
        two.begin("other", leaving)
        assert two.alone["one"] != two.alone["other"]
        return two

    @classmethod
    def first_under_way(cls, machine: Machine, images: Images, leaving: str = "") -> "Two":
        """Begins the first one alone."""
        job = machine.told("llm", f"alloc 8 {EACH}")
        images.taken("first")
        two = cls(machine, images, job, machine.used(), {})
        two.begin("one", leaving)
        assert machine.used() > two.rest
        return two

    def begin(self, name: str, leaving: str) -> None:
        store = self.machine.folder / "alone"
        assert self.job.ask("again 5") == "ok"
        self.images.taken(f"alone-{name}", image=name, store=str(store))
        self.alone[name] = names_of_chunks(Store(store), name)
        (self.images.begin_held_by_a_caller if name == leaving else self.images.begin_held)(name)

    def is_whole(self, name: str) -> None:
        assert self.images.ended(name).code == 0, self.images.ended(name).body
        assert self.machine.gcr("verify", name, "--deep", "--store", str(self.images.store.path)).code == 0
        assert names_of_chunks(self.images.store, name) == self.alone[name]

    def goes_on(self, before: str) -> None:
        """The program has its bytes, the device its memory; an image can be made, and the job leave and come back."""
        assert self.machine.settled() == "running"
        until(lambda: self.machine.used() <= self.rest or None, 20, "the device has its memory back")
        assert self.job.ask() == before
        self.images.taken("next")
        self.machine.leave()
        self.machine.come_back()
        assert self.job.ask() == before


@pytest.fixture
def two(machine: Machine, images: Images) -> Two:
    return Two.under_way(machine, images)


def test_both_are_whole_and_any_other_command_waits_for_them(two: Two) -> None:
    before = two.job.ask()
    for reading in (("one", "other"), ("one",)):
        for command in ("checkpoint", "restore"):
            refused = two.machine.ask(command, "llm")
            assert (refused.code, refused.body["error"]["code"]) == (3, "wrong_state"), reading
        assert two.images.release(reading[-1]).code == 0
        two.is_whole(reading[-1])
    assert two.machine.job("llm")["image"]["name"] == "other"  # type: ignore[index]
    two.goes_on(before)


@pytest.mark.parametrize("leaving", ["one", "other"])
def test_one_whose_caller_leaves_costs_the_other_nothing(machine: Machine, images: Images, leaving: str) -> None:
    two, (kept,) = Two.under_way(machine, images, leaving), {"one", "other"} - {leaving}
    before = two.job.ask()
    images.leave(leaving)
    assert images.release(kept).code == 0
    two.is_whole(kept)
    assert leaving not in images.store.images.names()
    two.goes_on(before)


def test_those_that_fail_at_any_step_cost_the_one_before_nothing(machine: Machine, images: Images) -> None:
    two = Two.first_under_way(machine, images)
    for step in ("prepared", "stop", "quiesced", "snapshotted", "running", "reading"):
        assert two.job.ask("again 3") == "ok"
        before = two.job.ask()
        machine.inject(f"checkpoint.{step} fail")
        images.begin("other")
        failed = images.ended("other")
        assert (failed.code, failed.body["error"]["code"]) == (4, "injected_fault"), step
        assert two.job.ask() == before, step
    assert images.release("one").code == 0
    two.is_whole("one")
    two.goes_on(before)


@pytest.mark.parametrize("who", ["gcr.daemon", "gcr.worker", "gcr.image_helper"])
@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_whoever_dies_the_job_goes_on_and_no_image_has_other_bytes(two: Two, who: str) -> None:
    """With the worker or the daemon both images are lost; with its helper one is, and not the other."""
    before, helpers = two.job.ask(), two.machine.children("gcr.image_helper")
    kill(*([helpers[-1]] if who == "gcr.image_helper" else two.machine.children(who)))
    codes = {name: two.images.release(name).code for name in ("one", "other")}
    written = {name for name, code in codes.items() if code == 0}
    assert len(written) == (who == "gcr.image_helper"), codes
    for name in written:
        two.is_whole(name)
    assert {*two.images.store.images.names()} == {"first", *written}
    two.goes_on(before)


def test_a_program_that_ends_ends_both(two: Two) -> None:
    kill(two.machine.target("llm"))
    until(lambda: two.machine.job("llm")["state"] != "running" or None, 20, "it is heard of")  # type: ignore[index]
    for name in ("one", "other"):
        assert two.images.release(name).code in (3, 4)
    until(lambda: two.machine.job("llm") is None or None, 20, "the job is forgotten")
    until(lambda: two.machine.used() <= 16 * MIB or None, 20, "no more is left than the worker's context")
    assert two.images.store.images.names() == ["first"]


def test_a_program_that_needs_the_room_gets_it_from_both(machine: Machine, images: Images) -> None:
    """Its 120 MiB fit only without the two snapshots; both callers are told why their images are lost."""
    two = Two.under_way(machine, images)
    more = (machine.memory - two.rest) // EACH - 2
    assert two.job.ask(f"alloc {more} {EACH}") == "ok"
    before = two.job.ask()
    for name in ("one", "other"):
        assert two.images.release(name).body["error"]["code"] == "image_failed"
    two.job.ask(f"free_some {more}")
    before = two.job.ask()
    assert machine.settled() == "running"
    images.taken("next")
    assert two.job.ask() == before


def test_where_the_device_has_room_for_one_the_next_is_copied_while_it_stands(machine: Machine, images: Images) -> None:
    machine.memory = 192 * MIB
    program = Stamping.on(machine)
    spans: dict[str, list[Span]] = {"a": [], "b": []}
    with program.seen(spans["a"]):
        images.begin_held("a")
    program.go_on()
    with program.seen(spans["b"]):
        second = images.taken("b")
    assert second["snapshot_bytes"] < second["bytes_copied"]  # type: ignore[operator]
    first = images.release("a")
    assert (first.code, first.body["snapshot_bytes"] > 0) == (0, True)
    for name, seen in spans.items():
        program.check(images.store, name, seen)


def test_where_the_host_has_room_for_one_the_next_is_refused_before_anything_stops(
    machine: Machine, images: Images
) -> None:
    room(machine, 96 * MIB)
    two = Two.first_under_way(machine, images)
    before = two.job.ask()
    images.begin("other")
    refused = images.ended("other").body["error"]
    assert (images.ended("other").code, refused["code"], refused["state"]) == (3, "no_room", "running")
    assert images.release("one").code == 0
    two.is_whole("one")
    two.goes_on(before)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_many_that_overlap_by_chance_are_each_of_their_moment(machine: Machine, images: Images, seed: int) -> None:
    """Up to three are under way, live or not; each is built upon one that is durable by then, and ends at any time."""
    machine.memory, chance = 512 * MIB, random.Random(seed)
    program, spans, held = Stamping.on(machine), dict[str, list[Span]](), list[str]()
    for number in range(12):
        name = f"i{number}"
        with program.seen(spans.setdefault(name, [])):
            images.begin_held(name, live=chance.random() < 0.5)
        held.append(name)
        while held and (len(held) == 3 or chance.random() < 0.3):
            ending = held.pop(chance.randrange(len(held)))
            assert images.release(ending).code == 0, images.ended(ending).body
    for name in held:
        assert images.release(name).code == 0, images.ended(name).body
    for name, seen in spans.items():
        program.check(images.store, name, seen)
    program.go_on()


def test_one_that_ends_while_the_next_is_cut_leaves_that_alone(machine: Machine, images: Images) -> None:
    """It neither lets the program go on nor forgets the memory that the next cut has exported again."""
    machine.memory = 512 * MIB
    program = Stamping.on(machine)
    for step in ("prepared", "quiesced", "snapshotted"):
        one, following = f"before-{step}", f"cut-{step}"
        spans: dict[str, list[Span]] = {one: [], following: []}
        with program.seen(spans[one]):
            images.begin_held(one)
        program.go_on()
        with program.seen(spans[following]):
            images.begin_held(following, step)
            assert images.release(one).code == 0, images.ended(one).body
            there = rounds(program.job)
            time.sleep(0.3)
            assert (rounds(program.job) == there) == (step != "prepared")
            assert images.release(following).code == 0, images.ended(following).body
        for name, seen in spans.items():
            program.check(images.store, name, seen)
        program.go_on()


@pytest.mark.parametrize("who", ["gcr.daemon", "gcr.worker", "gcr.image_helper"])
def test_whoever_dies_while_the_next_is_cut_the_program_runs_on(machine: Machine, images: Images, who: str) -> None:
    """It stands still at that instant, and the copy of the cut before is being read."""
    two = Two.first_under_way(machine, images)
    assert two.job.ask("again 3") == "ok"
    before = two.job.ask()
    images.begin_held("other", "quiesced")
    helpers = machine.children("gcr.image_helper")
    kill(*([helpers[-1]] if who == "gcr.image_helper" else machine.children(who)))
    codes = [images.release(name).code for name in ("other", "one")]
    assert codes == [4, 0 if who == "gcr.image_helper" else 4]
    if who == "gcr.image_helper":
        two.is_whole("one")
    two.goes_on(before)
