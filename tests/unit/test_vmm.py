"""Pure parts of the data plane that all vendors share."""

import gc
import weakref
from collections.abc import Callable
from itertools import accumulate, cycle
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.drain import HandleSpec
from gcr.errors import DriverError
from gcr.vmm.drain import VmmDrain
from gcr.vmm.ranges import Piece, quietly, runs
from gcr.vmm.reads import Reads
from gcr.vmm.streams import Streams
from gcr.vmm.transfer import PACED_BYTES, Part, StreamTransfer, cut, host_to_device


def piece(offset: int, size: int) -> Piece:
    return Piece(HandleSpec(offset, size), None, offset)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], []),
        ([(0, 4)], [(0, 4)]),
        ([(0, 4), (4, 2), (6, 1)], [(0, 7)]),
        ([(6, 1), (0, 4)], [(0, 4), (6, 7)]),
        ([(0, 4), (8, 4), (4, 4), (16, 4)], [(0, 12), (16, 20)]),
    ],
)
def test_runs_join_neighbours_and_keep_holes(pieces: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    assert list(runs(piece(*each) for each in pieces)) == expected


@pytest.mark.parametrize("sizes", [[0], [1], [10], [11], [25, 3, 40]])
def test_cutting_a_copy_neither_loses_nor_repeats_a_byte(sizes: list[int]) -> None:
    copies = [(1000 * (n + 1), 5000 * (n + 1), size) for n, size in enumerate(sizes)]
    limits = cycle([10, 3, 7])
    moved = [(to + i, at + i) for to, at, size in cut(copies, lambda: next(limits)) for i in range(size)]
    assert moved == [(to + i, at + i) for to, at, size in copies for i in range(size)]
    assert all(size <= 10 for _to, _at, size in cut(copies, lambda: 10))


class Stream:
    """A stream that finishes one copy whenever an event is asked for. An event: how many copies were queued before it.

    copies: those queued, and how many were in flight then, itself included · timed: number of such events
    """

    def __init__(self, fails_at: int = -1) -> None:
        self.copies: list[tuple[Part, int]] = []
        self.finished, self.fails_at, self.closed, self.timed = 0, fails_at, False, 0

    def host_to_device(self, device: int, host: int, size: int) -> None:
        if len(self.copies) == self.fails_at:
            raise DriverError("cuMemcpyHtoDAsync: CUDA_ERROR_UNKNOWN (999)")
        self.copies.append(((device, host, size), len(self.copies) + 1 - self.finished))

    def mark(self, *, timed: bool) -> int:
        self.timed += timed
        return len(self.copies)

    def passed(self, event: int) -> bool:
        self.finished = min(self.finished + 1, len(self.copies))
        return self.finished >= event

    def seconds(self, first: int, last: int) -> float:
        return float(last - first)

    def forget(self, event: int) -> None: ...

    def idle(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def transfer_on(stream: Stream, parts: list[Part], paced: Callable[[], bool]) -> StreamTransfer:
    driver = SimpleNamespace(stream=lambda: stream, enter=lambda: None)
    return StreamTransfer(cast("Any", driver), parts, host_to_device, paced)


MIB = 1 << 20


@given(
    sizes=st.lists(st.integers(1, 200 * MIB), min_size=1, max_size=6),
    asks=st.integers(0, 40),
    by_wait=st.booleans(),
)
def test_a_paced_copy_has_one_short_piece_in_flight_and_moves_every_byte(
    sizes: list[int], asks: int, by_wait: bool
) -> None:
    starts = list(accumulate(sizes, initial=0))
    parts = [(start, 1 << 50 | start, size) for start, size in zip(starts, sizes, strict=False)]
    said = iter([True] * asks)
    stream, alone = Stream(), []

    def paced() -> bool:
        alone.append(next(said, False))
        return alone[-1]

    transfer = transfer_on(stream, parts, paced)
    seen = [0]
    while not by_wait and transfer.running:
        seen.append(transfer.done())
    transfer.wait(60.0)
    assert (transfer.done(), stream.closed, seen) == (sum(sizes), True, sorted(seen))
    at = 0
    for (device, host, size), _in_flight in stream.copies:
        assert (device, host) == (at, 1 << 50 | at)
        at += size
    assert at == sum(sizes)
    if all(alone):
        assert all(size <= PACED_BYTES and in_flight == 1 for (_, _, size), in_flight in stream.copies)


@pytest.mark.parametrize("paced", [True, False])
def test_no_timed_event_is_recorded_beside_a_program(paced: bool) -> None:
    """A device stops the program's kernels for it. The host's clock tells how long the copy took."""
    stream = Stream()
    transfer = transfer_on(stream, [(0, 0, 3 * PACED_BYTES)], lambda: paced)
    assert transfer.wait(60.0) > 0
    assert stream.timed == (0 if paced else 2)


def test_once_the_driver_is_done_all_that_is_left_is_queued_though_a_piece_is_in_flight() -> None:
    stream, at_work = Stream(), [True]
    transfer = transfer_on(stream, [(0, 0, 400 * MIB)], lambda: at_work[0])
    assert [size for (_, _, size), _ in stream.copies] == [PACED_BYTES]
    at_work[0] = False
    stream.finished = -1  # the piece is still in flight at the next look
    transfer.done()
    assert sum(size for (_, _, size), _ in stream.copies) == 400 * MIB
    assert [size for (_, _, size), _ in stream.copies[1:]] == [64 * MIB] * 6
    transfer.wait(60.0)


def test_a_piece_that_the_driver_refuses_is_the_error_of_the_wait() -> None:
    transfer = transfer_on(Stream(fails_at=2), [(0, 0, 400 * MIB)], lambda: True)
    with pytest.raises(DriverError, match="cuMemcpyHtoDAsync"):
        transfer.wait(60.0)
    assert transfer.running


def test_a_stream_serves_one_transfer_after_the_other_but_none_after_a_failure() -> None:
    made: list[Stream] = []

    def stream() -> Stream:
        made.append(Stream(fails_at=1 if len(made) == 2 else -1))
        return made[-1]

    reads = Reads(cast("Any", SimpleNamespace(stream=stream, enter=lambda: None)), lambda: None)
    copies = [(0, 0, MIB)]
    for _ in range(3):
        reads.start(copies, host_to_device).wait(60.0)
    assert [len(each.copies) for each in made] == [3]
    both = [reads.start(copies, host_to_device) for _ in range(2)]
    for each in both:
        each.wait(60.0)
    assert [len(each.copies) for each in made] == [4, 1], "a stream has one transfer at a time"
    others = [reads.start(copies, host_to_device) for _ in range(2)]
    with pytest.raises(DriverError):
        reads.start([*copies, *copies], host_to_device)
    assert [each.closed for each in made] == [False, False, True]
    for each in others:
        each.wait(60.0)
    reads.close()
    assert [each.closed for each in made] == [True] * 3


def test_streams_beyond_those_that_are_kept_are_closed() -> None:
    streams = Streams(cast("Any", SimpleNamespace(stream=Stream)), most=2)
    taken = [cast("Any", streams.take()) for _ in range(3)]
    for each in taken:
        streams.give_back(each)
    assert [each.closed for each in taken] == [False, False, True]


def test_a_failing_undo_hides_nothing_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise DriverError("cuMemRelease: CUDA_ERROR_UNKNOWN (999)")

    quietly("cuMemRelease", fail)
    assert "CUDA_ERROR_UNKNOWN" in caplog.text


def test_ballast_that_was_released_is_forgotten_and_other_is_released_at_the_end() -> None:
    """A worker makes some at every checkpoint, for years."""
    driver = Mock(granularity=2 << 20)
    driver.create.side_effect = ["first", "second"]
    drain = VmmDrain(driver)
    first, _second = drain.ballast(1), drain.ballast(3 << 20)
    gone = weakref.ref(first)
    first.release()
    del first
    gc.collect()
    assert gone() is None
    drain.close()
    assert [call.args[0] for call in driver.release.call_args_list] == ["first", "second"]
