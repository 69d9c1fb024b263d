"""Lanes: copies to the device from a few slots, on one stream and with the same events."""

from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.errors import DeadlinePassed, DriverError
from gcr.vmm import lanes
from gcr.vmm.drain import VmmDrain
from gcr.vmm.lanes import StreamLane
from gcr.vmm.reads import Reads


class Plain:
    """A stream without events that serve again. An event: the number of copies before it."""

    def __init__(self) -> None:
        self.queued = self.moved = 0
        self.marks = list[list[int]]()
        self.closed = self.broken = self.stuck = False

    def host_to_device(self, _device: int, _host: int, _size: int) -> None:
        self.queued += 1

    device_to_host = device_to_device = host_to_device

    def mark(self, *, timed: bool) -> list[int]:
        assert not timed
        self.marks.append([self.queued])
        return self.marks[-1]

    def passed(self, event: list[int]) -> bool:
        if self.broken:
            raise DriverError("the device is lost")
        return self.moved >= event[0]

    def seconds(self, _first: list[int], _last: list[int]) -> float:
        return 0.0

    def forget(self, event: list[int]) -> None:
        self.marks.remove(event)

    def idle(self) -> bool:
        if not self.stuck:
            self.moved = self.queued
        return self.moved == self.queued

    def close(self) -> None:
        self.closed = True


class Stream(Plain):
    def mark_again(self, event: list[int]) -> None:
        event[0] = self.queued

    def wait_for(self, event: list[int]) -> None:
        if self.broken:
            raise DriverError("the device is lost")
        self.moved = max(self.moved, event[0])


@pytest.fixture
def made() -> list[Stream]:
    return []


@pytest.fixture
def reads(made: list[Stream]) -> Reads:
    def stream() -> Stream:
        made.append(Stream())
        return made[-1]

    return Reads(cast("Any", SimpleNamespace(stream=stream, enter=lambda: None)), lambda: None)


def lane_of(reads: Reads, slots: int) -> StreamLane:
    lane = reads.lane(slots)
    assert lane
    return lane


def test_a_lane_has_one_stream_and_one_event_for_each_slot_and_gives_the_stream_back(
    reads: Reads, made: list[Stream]
) -> None:
    for _ in range(2):
        lane = lane_of(reads, 2)
        (stream,) = made
        began = stream.queued
        for number in range(10):
            lane.land(number % 2)
            assert stream.moved >= began + number - 1, "the copy from this slot is on the device, the last may not be"
            lane.write(number % 2, 0, 0, 1)
            assert len(stream.marks) == 2
        lane.close()
        lane.close()
        assert (stream.marks, stream.moved, stream.closed) == ([], stream.queued, False)
    both = [lane_of(reads, 1) for _ in range(2)]
    assert len(made) == 2
    for each in both:
        each.close()


def test_after_a_failure_the_stream_serves_no_more_and_the_lane_says_that_a_copy_may_be_in_flight(
    reads: Reads, made: list[Stream]
) -> None:
    lane = lane_of(reads, 2)
    lane.write(0, 0, 0, 1)
    made[0].broken = True
    with pytest.raises(DriverError, match="is lost"):
        lane.land(0)
    with pytest.raises(DriverError, match="is lost"):
        lane.close()
    assert (made[0].closed, lane.running) == (True, False)


def test_a_copy_that_does_not_end_is_told_after_a_while(
    reads: Reads, made: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LONGEST_COPY_SECONDS", 0.01)
    lane = lane_of(reads, 2)
    lane.write(1, 0, 0, 1)
    made[0].stuck = True
    with pytest.raises(DeadlinePassed):
        lane.close()
    assert made[0].closed


def test_memory_is_not_unmapped_while_a_lane_has_a_copy_in_flight(reads: Reads, made: list[Stream]) -> None:
    lane, unmapped = lane_of(reads, 2), Event()
    lane.write(0, 0, 0, 1)
    made[0].stuck = True

    def unmap() -> None:
        with reads.none():
            unmapped.set()

    thread = Thread(target=unmap)
    thread.start()
    assert not unmapped.wait(0.05)
    made[0].stuck = False
    thread.join(60)
    assert unmapped.is_set()
    lane.write(1, 0, 0, 1)
    lane.close()
    reads.close()
    assert made[0].closed


def test_a_driver_whose_streams_cannot_wait_for_an_event_has_no_lanes() -> None:
    kept = list[Plain]()

    def stream() -> Plain:
        kept.append(Plain())
        return kept[-1]

    drain = VmmDrain(cast("Any", SimpleNamespace(stream=stream, enter=lambda: None)))
    assert [drain.lane(2), drain.lane(2)] == [None, None]
    assert [each.closed for each in kept] == [False], "the stream serves a transfer"


def test_a_lane_that_is_not_made_whole_leaves_no_stream() -> None:
    stream = Stream()

    def mark(*, timed: bool) -> list[int]:
        if stream.marks:
            raise DriverError("no event")
        return Plain.mark(stream, timed=timed)

    stream.mark = mark  # type: ignore[method-assign]
    drain = VmmDrain(cast("Any", SimpleNamespace(stream=lambda: stream, enter=lambda: None)))
    with pytest.raises(DriverError, match="no event"):
        drain.lane(2)
    assert (stream.closed, stream.marks) == (True, [])
