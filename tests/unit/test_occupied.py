"""The page of what is occupied: said before anything is taken, until all is given back; the daemon alone writes it."""

import mmap
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from gcr.daemon import occupied as page
from gcr.daemon.fleet import Fleet
from gcr.daemon.occupied import PAGE_BYTES, Occupied
from gcr.devices import uuid_text
from gcr.engine.steps.snapshot import MakeRoom
from gcr.errors import NoRoom, PeerGone
from gcr.protocol.agentwire import OccupiedRecord
from gcr.protocol.wire import OCCUPIED_DEVICES

ONE, OTHER = (uuid_text(uuid.UUID(int=number).bytes) for number in (1, 2))


class Clock:
    """Time that passes when a test says so, and the timers that wait for it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[..., object], Sequence[object]]] = []

    def timer(self, seconds: float, call: Callable[..., object], arguments: Sequence[object]) -> Any:
        return SimpleNamespace(start=lambda: self.due.append((self.now + seconds, call, arguments)))

    def passes(self, seconds: float) -> None:
        self.now += seconds
        while ready := [each for each in self.due if each[0] <= self.now]:
            self.due.remove(ready[0])
            ready[0][1](*ready[0][2])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(page, "Timer", made.timer)
    monkeypatch.setattr(page, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.fixture
def occupied(clock: Clock) -> Iterator[Occupied]:
    made = Occupied()
    yield made
    os.close(made.fd)


def said(occupied: Occupied) -> list[tuple[str, int]]:
    """Returns the rows that an agent reads."""
    with mmap.mmap(occupied.fd, PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        rows = OccupiedRecord.unpack_many(mapped[:], 0, OCCUPIED_DEVICES)
    return [(uuid_text(row.uuid), row.occupied) for row in rows if row.uuid != bytes(16)]


def test_a_device_is_occupied_until_the_last_is_over_and_a_little_longer(occupied: Occupied, clock: Clock) -> None:
    """An allocation that failed while the memory was there finds the page saying so when the agent looks."""
    assert said(occupied) == []
    with occupied.on(ONE):
        assert said(occupied) == [(ONE, 1)]
        with occupied.on(OTHER), occupied.on(ONE):
            assert said(occupied) == [(ONE, 1), (OTHER, 1)]
        assert said(occupied) == [(ONE, 1), (OTHER, 1)]
        clock.passes(page.LINGER_S)
        assert said(occupied) == [(ONE, 1), (OTHER, 0)]
    clock.passes(page.LINGER_S / 2)
    with pytest.raises(ZeroDivisionError), occupied.on(ONE):
        raise ZeroDivisionError
    clock.passes(page.LINGER_S * 0.75)
    assert said(occupied) == [(ONE, 1), (OTHER, 0)]
    clock.passes(page.LINGER_S)
    assert (said(occupied), clock.due) == ([(ONE, 0), (OTHER, 0)], [])
    with occupied.on(ONE):
        clock.passes(10 * page.LINGER_S)
        assert said(occupied) == [(ONE, 1), (OTHER, 0)]


def test_more_devices_than_rows_are_refused(occupied: Occupied, clock: Clock) -> None:
    names = [uuid_text(uuid.UUID(int=number + 1).bytes) for number in range(OCCUPIED_DEVICES + 1)]
    for name in names[:-1]:
        with occupied.on(name):
            continue
    clock.passes(page.LINGER_S)
    with pytest.raises(NoRoom), occupied.on(names[-1]):
        raise AssertionError
    with occupied.on(names[0]):
        assert said(occupied) == [(name, int(name == names[0])) for name in names[:-1]]


def test_a_receiver_can_neither_write_it_nor_cut_it_short(occupied):
    with pytest.raises(PermissionError):
        mmap.mmap(occupied.fd, PAGE_BYTES)
    for attempt in (lambda: os.write(occupied.fd, b"1"), lambda: os.ftruncate(occupied.fd, 0)):
        with pytest.raises(OSError):
            attempt()
    assert os.fstat(occupied.fd).st_mode & 0o777 == 0o600
    again = os.open(f"/proc/self/fd/{occupied.fd}", os.O_RDWR)  # as its owner
    with pytest.raises(PermissionError):
        os.ftruncate(again, 0)
    os.close(again)


def test_a_need_of_room_on_one_device_costs_no_other_its_image():
    asked: list[str] = []

    def worker(device: str) -> SimpleNamespace:
        return SimpleNamespace(
            lives=True, peer=SimpleNamespace(device=device, give_up_snapshots=lambda: asked.append(device))
        )

    fleet = Fleet()
    fleet._workers = {(world, device): worker(device) for world in (1, 2) for device in (ONE, OTHER)}
    fleet.give_up_snapshots({ONE})
    assert asked == [ONE, ONE]


@pytest.mark.parametrize("made", [0, 1, PeerGone("the worker died")])
def test_it_is_said_before_a_worker_makes_room(occupied, clock, made):
    """The row is taken back if there is no room; after no answer it stays until all is over."""
    seen = []

    def make_room(_hold, _limit):
        seen.extend(said(occupied))
        if isinstance(made, Exception):
            raise made
        return made

    work = SimpleNamespace(node=SimpleNamespace(occupying=occupied.on))
    worker = SimpleNamespace(device=ONE, copies=SimpleNamespace(make_room=make_room))
    fails = pytest.raises(PeerGone) if isinstance(made, Exception) else nullcontext()
    with ExitStack() as occupying:
        with fails:
            MakeRoom(work, occupying).make(SimpleNamespace(copy_name="7.1 9"), worker, 1.0)
        assert seen == [(ONE, 1)]
        clock.passes(page.LINGER_S)
        assert said(occupied) == [(ONE, int(made != 0))]
    clock.passes(page.LINGER_S)
    assert said(occupied) == [(ONE, 0)]
