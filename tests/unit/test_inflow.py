"""Copies from an image through a ring to a device: every window once, one user a slot; a failure stops the rest."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gcr.engine.inflow import FEWEST_SLOTS, MOST_SLOTS, MOST_WINDOWS, Inflow, Inlet, Window, batches
from gcr.engine.node import Course
from gcr.errors import DeadlinePassed, Interrupted, NoRoom, RolledBack
from gcr.imageerrors import Damaged
from gcr.testing.machine import PATIENCE, until

WINDOW = 100  # bytes
SLOT = WINDOW + WINDOW // 2  # there is room for one
MANY = 4000  # windows; no test waits for them all
Step = tuple[str, int, str, int]  # what, pid, device, offset


@dataclass
class Disk:
    """An image, and where its windows have been read to. `slow`: seconds a window.

    `bad`: offsets that are damaged, which is seen when all `rings` are there.
    """

    count: int = 20
    bad: Sequence[int] = ()
    slow: float = 0.0
    lacks: int = 0
    rings: int = 1
    slots: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # pid and offset of what is in them
    busy: set[tuple[str, int]] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def size(self, _pid: int, _device: str) -> int:
        return self.count * WINDOW + self.lacks

    def windows(self, _pid: int, _device: str, most: int) -> Iterator[tuple[int, int]]:
        assert most == SLOT
        return ((number * WINDOW, WINDOW) for number in range(self.count))

    def lend_slots(self, device: str, slot_bytes: int, fds: Sequence[int]) -> None:
        assert slot_bytes == SLOT and not fds
        self.steps.append(("lent", 0, device, 0))

    def read(self, pid: int, device: str, slot: int, windows: Sequence[Window]) -> None:
        ((offset, _),) = windows
        with self.lock:
            assert (device, slot) not in self.busy, "another has it"
            self.busy.add((device, slot))
        time.sleep(self.slow)
        if offset in self.bad:
            until(lambda: sum(what == "lent" for what, *_ in self.steps) >= self.rings, PATIENCE, "all have rings")
            raise Damaged(f"at {offset}")
        with self.lock:
            self.busy.remove((device, slot))
            self.slots[device, slot] = pid, offset
            self.steps.append(("read", pid, device, offset))


@dataclass
class Worker:
    device: str
    disk: Disk
    left: str = ""
    slots: int = MOST_SLOTS
    made: list[str] = field(default_factory=list)
    emptied: list[tuple[str, int]] = field(default_factory=list)
    rings = property(lambda self: self)

    def make(
        self, hold: str, _owner: str, slot_bytes: int, most: int, least: int, beyond: bool
    ) -> tuple[int, list[int]]:
        assert (slot_bytes, most, least, beyond) == (SLOT, MOST_SLOTS, FEWEST_SLOTS, True) and not self.made
        if not self.slots:
            raise NoRoom("none", missing=1)
        self.made.append(hold)
        return self.slots, []

    def empty(self, hold: str, slot: int, windows: Sequence[Window], deadline: float) -> None:
        ((offset, size),) = windows
        assert self.made == [hold] and size == WINDOW and 0 < deadline <= 5
        pid, there = self.disk.slots.pop((self.left or self.device, slot))
        assert (str(pid), there) == (hold, offset), "what was read is what is copied"
        self.emptied.append((hold, offset))

    def drop(self, hold: str) -> None:
        self.made.remove(hold)


def inlet(pid: int, worker: Worker) -> Inlet:
    target = SimpleNamespace(
        pid=pid, copy_name=str(pid), owner=f"llm/{pid}", left=lambda _device: worker.left or worker.device
    )
    return cast("Inlet", (target, worker))


def inflow(disk: Disk, **more: Any) -> Inflow:
    return Inflow(cast("Any", disk), Course("restore", 1, 60, **more), slot_bytes=SLOT, copy_s=5)


def test_every_window_of_every_process_comes_to_its_device_once() -> None:
    disk = Disk()
    one, two = Worker("GPU-1", disk), Worker("GPU-2", disk, left="GPU-9")
    flow = inflow(disk)
    flow.run([inlet(7, one), inlet(8, one), inlet(7, two)])
    every = [number * WINDOW for number in range(disk.count)]
    assert sorted(one.emptied) == [("7", at) for at in every] + [("8", at) for at in every]
    assert sorted(two.emptied) == [("7", at) for at in every]
    assert one.made == two.made == [], "and the memory is the arena's again"
    assert {key: each.bytes for key, each in flow.done.items()} == dict.fromkeys(
        [(7, "GPU-1"), (8, "GPU-1"), (7, "GPU-2")], disk.count * WINDOW
    )
    assert {device for what, _, device, _ in disk.steps if what == "lent"} == {"GPU-1", "GPU-9"}


def test_reading_goes_on_while_a_window_is_copied() -> None:
    class Patient(Worker):
        def empty(self, hold: str, slot: int, windows: Sequence[Window], deadline: float) -> None:
            if windows[0][0] == 0:
                until(lambda: len(self.disk.steps) > self.disk.count // 2, PATIENCE, "half of the others are read")
            super().empty(hold, slot, windows, deadline)

    disk = Disk(count=16)
    inflow(disk).run([inlet(7, Patient("GPU-1", disk))])
    assert {offset for what, _, _, offset in disk.steps if what == "read"} == {n * WINDOW for n in range(16)}


@pytest.mark.parametrize("bad", [0, 9 * WINDOW, 19 * WINDOW])
def test_damage_ends_it_and_the_ring_stays_with_its_possible_writers(bad: int) -> None:
    disk = Disk(count=MANY, bad=[bad], slow=0.002, rings=2)
    one, two = Worker("GPU-1", disk), Worker("GPU-2", disk)
    flow = inflow(disk)
    with pytest.raises(Damaged, match=f"at {bad}"):
        flow.run([inlet(7, one), inlet(8, one), inlet(7, two)])
    assert one.made and not any(hold == "8" for hold, _ in one.emptied), "nothing new is begun"
    assert ("7", bad) not in one.emptied + two.emptied
    if bad == 0:
        assert len(one.emptied) + len(two.emptied) < disk.count, "the others stop"


def test_bytes_that_are_missing_are_noticed() -> None:
    disk = Disk(lacks=1)
    with pytest.raises(RolledBack, match="2000 bytes of process 7 were copied, there are 2001"):
        inflow(disk).run([inlet(7, Worker("GPU-1", disk))])


def test_without_room_for_a_ring_nothing_is_read() -> None:
    disk = Disk()
    with pytest.raises(NoRoom):
        inflow(disk).run([inlet(7, Worker("GPU-1", disk, slots=0))])
    assert disk.steps == []


def test_a_device_that_has_no_room_for_one_ends_the_others() -> None:
    disk = Disk(count=MANY, slow=0.01)
    one, two = Worker("GPU-1", disk), Worker("GPU-2", disk, slots=0)
    with pytest.raises(NoRoom):
        inflow(disk).run([inlet(7, one), inlet(7, two)])
    assert len(one.emptied) < disk.count


def test_it_stops_at_the_deadline_and_when_it_is_no_longer_wanted() -> None:
    disk, over = Disk(slow=0.01), threading.Event()
    over.set()
    with pytest.raises(Interrupted):
        inflow(disk, cancelled=over).run([inlet(7, Worker("GPU-1", disk))])
    late = inflow(disk)
    late.course.timeout = 0.03
    with pytest.raises(DeadlinePassed):
        late.run([inlet(7, Worker("GPU-1", disk))])
    assert len(disk.steps) < 20


@given(st.lists(st.integers(1, WINDOW), max_size=50), st.integers(WINDOW, 10 * WINDOW))
@example([1] * (2 * MOST_WINDOWS + 1), 2 * MOST_WINDOWS)
def test_a_slot_has_as_many_windows_as_fit_and_as_one_message_names(sizes: list[int], most: int) -> None:
    windows = [(1000 * number, size) for number, size in enumerate(sizes)]
    found = [*batches(windows, most)]
    assert [window for some in found for window in some] == windows
    all_bytes = [sum(size for _, size in some) for some in found]
    assert all(0 < each <= most for each in all_bytes) and all(len(some) <= MOST_WINDOWS for some in found)
    for bytes_of_all, (some, after) in zip(all_bytes, pairwise(found), strict=False):
        assert len(some) == MOST_WINDOWS or bytes_of_all + after[0][1] > most
