"""A worker without a context keeps the arena; one that comes later finds everything pinned that lies there."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from threading import Thread
from types import SimpleNamespace

import pytest

from gcr.drain import DeviceMemory, DeviceRange, HandleSpec, Span
from gcr.errors import DriverError, NoContext, RolledBack
from gcr.memory.arena import Arena
from gcr.protocol.batches import Incoming
from gcr.protocol.operations.worker import ProcessFacts
from gcr.worker.attachment import Attachment
from gcr.worker.bounce import Slots
from gcr.worker.holding import Holding
from gcr.worker.holdings import Holdings
from gcr.worker.link import IN, Link
from gcr.worker.refilling import copy_in
from gcr.worker.serving.copies import CopyServing

MIB = 1 << 20
CONTEXT = 16 * MIB


class Drain:
    """Counts what is pinned with it."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.closed = False

    def pin(self, address: int, size: int) -> None:
        self.pinned[address] = size

    def unpin(self, address: int) -> None:
        del self.pinned[address]

    def memory(self) -> DeviceMemory:
        return DeviceMemory(used=CONTEXT, total=1 << 30, by_pid={os.getpid(): CONTEXT})

    def close(self) -> None:
        self.closed = True


class Device:
    def __init__(self) -> None:
        self.full = True
        self.drains: list[Drain] = []

    def drain(self) -> Drain:
        if self.full:
            raise NoContext("full")
        self.drains.append(Drain())
        return self.drains[-1]


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def attachment(device: Device) -> Attachment:
    return Attachment(device.drain)  # type: ignore[arg-type]


@pytest.fixture
def arena(attachment: Attachment) -> Iterator[Arena]:
    made = Arena(attachment.pin, attachment.unpin, segment_bytes=4 * MIB, limit_bytes=64 * MIB, threads=2)
    yield made
    made.close()


def counted(used: int, by_pid: dict[int, int]) -> DeviceMemory:
    return DeviceMemory(used=used, total=1 << 30, by_pid=by_pid)


def test_memory_that_came_is_ours_or_free_and_not_another_process_s(attachment: Attachment, device: Device) -> None:
    device.full = False
    assert attachment.attach()
    ours, other = {os.getpid(): CONTEXT}, {1: 90 * MIB}
    assert attachment.beyond_rest(counted(CONTEXT, ours)) == 0
    assert attachment.beyond_rest(counted(CONTEXT + 90 * MIB, ours | other)) == 0
    assert attachment.beyond_rest(counted(CONTEXT + 97 * MIB, ours | other)) == 7 * MIB
    assert attachment.beyond_rest(counted(CONTEXT + 7 * MIB, {os.getpid(): CONTEXT + 7 * MIB})) == 7 * MIB


def test_without_a_context_there_is_no_drain(attachment: Attachment) -> None:
    assert not attachment.attach()
    with pytest.raises(NoContext):
        _ = attachment.drain


def test_what_lies_in_the_arena_is_pinned_once_there_is_a_context(
    attachment: Attachment, device: Device, arena: Arena
) -> None:
    early = arena.take("a", 6 * MIB)
    gone = arena.take("b", 2 * MIB)
    arena.give_back(gone)
    arena.end("b")
    device.full = False
    assert attachment.attach()
    assert attachment.attach()
    (drain,) = device.drains
    assert drain.pinned == {part.address: part.size for part in early}
    assert attachment.beyond_rest(counted(CONTEXT + 5 * MIB, {os.getpid(): CONTEXT})) == 5 * MIB
    late = arena.take("c", 2 * MIB)
    assert drain.pinned.keys() >= {part.address for part in late}
    arena.give_back(late)
    arena.end("c")
    assert drain.pinned == {part.address: part.size for part in early}


def test_a_context_is_given_back_and_had_again(attachment: Attachment, device: Device, arena: Arena) -> None:
    device.full = False
    attachment.attach()
    kept = arena.take("a", 4 * MIB)
    attachment.detach()
    attachment.detach()
    assert device.drains[0].closed
    assert not attachment.attached
    assert attachment.attach()
    assert device.drains[1].pinned == {part.address: part.size for part in kept}


def test_memory_that_cannot_be_pinned_makes_no_attachment(
    attachment: Attachment, device: Device, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena.take("a", 4 * MIB)

    def refuse(_drain: Drain, _address: int, _size: int) -> None:
        raise DriverError("cuMemHostRegister")

    monkeypatch.setattr(Drain, "pin", refuse)
    device.full = False
    with pytest.raises(DriverError):
        attachment.attach()
    assert device.drains[0].closed
    assert not attachment.attached


def test_a_pin_that_fails_is_forgotten(attachment: Attachment, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    device.full = False
    attachment.attach()
    with monkeypatch.context() as broken:
        broken.setattr(Drain, "pin", lambda *_: (_ for _ in ()).throw(DriverError("no")))
        with pytest.raises(DriverError):
            attachment.pin(4096, 4096)
    attachment.detach()
    attachment.attach()
    assert device.drains[1].pinned == {}


def test_places_for_bytes_that_another_process_copies(attachment: Attachment, arena: Arena) -> None:
    holding = Holding(attachment, arena, "GPU-a", owner="llm/1")
    copy = holding.copy(3)
    copy.lay_out([HandleSpec(7, 3 * MIB), HandleSpec(5, 2 * MIB), HandleSpec(9, MIB)])
    about = ProcessFacts("llm", 1, start_time=2, transaction=3, ordinals={0: "GPU-a"}, mappings=())
    table = copy.seal(about)
    assert [(each.spec.id, each.offset) for each in table.handles] == [(7, 0), (5, 3 * MIB), (9, 5 * MIB)]
    assert sum(part.size for part in table.segments) >= 6 * MIB
    assert holding.memory.ids() == []
    holding.forget_copy(3)
    assert arena.free_bytes == arena.bytes
    assert holding.memory.specs == {}
    holding.forfeit()


def test_what_needs_a_context_says_so(attachment: Attachment, arena: Arena) -> None:
    holding = Holding(attachment, arena, "GPU-a", owner="llm/1")
    holding.copy(3).lay_out([HandleSpec(7, MIB)])
    with pytest.raises(NoContext):
        holding.create(3, 0)
    with pytest.raises(NoContext):
        copy_in(holding.copy(3), 1.0, lambda _report: None, lambda _size: False, Slots(arena, 2))
    holding.release()


class Slow(Drain):
    """A drain whose write can be met in its middle. `said`: what was done, in order."""

    def __init__(self, meet: Callable[[], None]) -> None:
        super().__init__()
        self.meet, self.said = meet, list[str]()

    def create(self, specs: Sequence[HandleSpec]) -> DeviceRange:
        return DeviceRange(1 << 40, sum(each.size for each in specs), {each.id: 0 for each in specs})

    def write(self, _spans: Sequence[Span]) -> SimpleNamespace:
        self.meet()
        return SimpleNamespace(wait=lambda _timeout: self.said.append("waited"), done=lambda: MIB)

    def release(self, _where: DeviceRange) -> None:
        self.said.append("released")


def test_memory_that_is_being_refilled_is_released_after_the_transfer(arena: Arena) -> None:
    ending: list[Thread] = []

    def end() -> None:
        ending.append(Thread(target=holding.forfeit))
        ending[0].start()
        ending[0].join(0.3)

    drain = Slow(end)
    attachment = Attachment(lambda: drain)  # type: ignore[arg-type,return-value]
    attachment.attach()
    holding = Holding(attachment, arena, "GPU-a", owner="llm/1")
    holding.copy(3).lay_out([HandleSpec(7, MIB)])
    holding.create(3, 0)
    with suppress(RolledBack):
        copy_in(holding.copy(3), 10.0, lambda _report: None, lambda _size: False, Slots(arena, 2))
    ending[0].join(10)
    assert drain.said.index("waited") < drain.said.index("released")


class Pacing(Drain):
    """A drain that says which of its transfers were waited for before the next one began. `asks`: about the pace."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.asks: list[Callable[[], bool]] = []

    def create(self, specs: Sequence[HandleSpec]) -> DeviceRange:
        starts = accumulate((each.size for each in specs), initial=0)
        offsets = {each.id: start for each, start in zip(specs, starts, strict=False)}
        return DeviceRange(1 << 40, sum(each.size for each in specs), offsets)

    def write_paced(self, spans: Sequence[Span], paced: Callable[[], bool]) -> SimpleNamespace:
        size = sum(span.size for span in spans)
        self.asks.append(paced)
        self.said.append("began")
        return SimpleNamespace(wait=lambda _timeout: self.said.append("waited"), done=lambda: size)

    read_paced = write_paced

    def release(self, _where: DeviceRange) -> None: ...


@pytest.mark.parametrize("at_work", [True, False])
def test_while_the_driver_is_at_work_one_transfer_follows_the_other(arena: Arena, at_work: bool) -> None:
    drain = Pacing()
    attachment = Attachment(lambda: drain)  # type: ignore[arg-type,return-value]
    attachment.attach()
    holdings = Holdings(attachment, arena, "GPU-a")
    holdings.driver_at_work("of another process", 1.0 * at_work)
    copy = holdings.of("llm/1").copy(3)
    copy.lay_out([HandleSpec(each, 4 * MIB) for each in range(4)])
    assert copy.segments
    count = len(copy.segments.parts)
    assert count > 1
    holdings.of("llm/1").create(3, 0)
    copy_in(copy, 10.0, lambda _report: None, lambda size: holdings.driver_s() > size / (100 * MIB), Slots(arena, 2))
    first = ["began", "waited"] * count if at_work else ["began"] * count
    assert drain.said == first + ["waited"] * count
    assert all(ask() is at_work for ask in drain.asks)
    holdings.driver_at_work("of another process", 0.0)
    assert not any(ask() for ask in drain.asks)


def test_a_process_that_is_gone_no_longer_holds_up_the_copies_of_others(attachment: Attachment, arena: Arena) -> None:
    holdings = Holdings(attachment, arena, "GPU-a")
    holdings.driver_at_work("llm/1", 1.0)
    holdings.driver_at_work("llm/2", 0.5)
    assert holdings.driver_s() == 1.0
    holdings.remove("llm/1")
    assert holdings.driver_s() == 0.5
    holdings.driver_at_work("llm/3", 0.001)  # its daemon dies
    holdings.driver_at_work("llm/2", 0.0)
    time.sleep(0.02)
    assert holdings.driver_s() == 0.0


@pytest.mark.parametrize(("speeds", "longest"), [({IN: 100.0 * MIB}, 50 * MIB), ({}, 25_000_000_000)])
def test_a_refill_that_takes_longer_than_the_driver_keeps_its_queue_full(
    attachment: Attachment, arena: Arena, speeds: dict[str, float], longest: int
) -> None:
    holdings = Holdings(attachment, arena, "GPU-a")
    serving = CopyServing(holdings, Link(attachment, arena, speeds), Incoming(), Slots(arena, 2))
    assert not serving._paced(1)
    holdings.driver_at_work("llm/1", 0.5)
    assert (serving._paced(longest - 1), serving._paced(longest + 1)) == (True, False)


class Hashing(Drain):
    """Hashes by a kernel of its own."""

    def make_ready_to_hash(self, _timeout: float) -> bool:
        return True


@pytest.mark.parametrize(
    ("copying", "hashing", "quick"), [(0.01, 0.2, True), (2.0, 3.9, True), (0.3, 0.7, False), (0.01, 0.3, False)]
)
def test_a_device_that_hashes_much_slower_than_it_copies_is_not_asked_to(
    copying: float, hashing: float, quick: bool
) -> None:
    attachment = Attachment(Hashing)
    assert attachment.attach()
    attachment.make_ready_to_hash(1.0)
    assert attachment.hashes_itself()
    attachment.hashed_beside(copying, hashing)
    attachment.make_ready_to_hash(1.0)
    assert attachment.hashes_itself() is quick
