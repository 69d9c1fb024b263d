"""Descriptors that a worker gives come in as many messages as they need, over a real socket."""

import os
import socket
from collections.abc import Iterator
from threading import RLock
from types import SimpleNamespace
from typing import Any, cast

import pytest
from channels import open_descriptors

from gcr.errors import RolledBack, WrongState
from gcr.memory.layout import SealedSegment, SealedTable
from gcr.peers.worker_memory.copies import WorkerCopies
from gcr.peers.worker_memory.rings import WorkerRings
from gcr.protocol.batches import BATCH, Incoming
from gcr.protocol.channel import Channel
from gcr.protocol.operations.operation import Dispatcher
from gcr.protocol.operations.worker import CopyName, ProcessFacts
from gcr.protocol.seqpacket import close_all
from gcr.protocol.wire import MAX_DESCRIPTORS
from gcr.testing.machine import until
from gcr.worker.serving import rings as serving_rings
from gcr.worker.serving.copies import CopyServing
from gcr.worker.serving.rings import RingServing

COUNTS = [1, BATCH - 1, BATCH, MAX_DESCRIPTORS + 1]
COPY = CopyName("7.1", 9)
ABOUT = ProcessFacts("llm", 7, start_time=8, transaction=9, ordinals={0: "GPU-a"}, mappings=())


class Made:
    """A worker with one copy and one ring, of any descriptors. `lost`: they are gone after the first answer."""

    def __init__(self) -> None:
        self.memory: list[int] = []
        self.lost, self.lock = False, RLock()

    @property
    def segments(self) -> Any:
        return SimpleNamespace(fds=[*self.memory])

    @property
    def ring(self) -> Any:
        return None if self.lost else SimpleNamespace(segments=self.segments, count=2)

    def seal(self, _about: object) -> SealedTable:
        parts = (SealedSegment("GPU-a", 4096),) * len(self.memory)
        return SealedTable("llm", 7, 8, 9, {}, (), (), parts)

    def fill(self, count: int) -> None:
        self.memory += [os.memfd_create(f"segment {number}") for number in range(count)]

    def inodes(self) -> list[int]:
        return [os.fstat(fd).st_ino for fd in self.memory]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    found = Made()
    monkeypatch.setattr(serving_rings, "make_ring", lambda copy, *_how: copy.ring)
    yield found
    close_all(found.memory)


@pytest.fixture
def channel(made: Made) -> Iterator[Channel]:
    holdings = cast("Any", SimpleNamespace(copy=lambda *_: made, arena=None))
    copies = CopyServing(holdings, cast("Any", None), Incoming(), cast("Any", None)).operations()
    worker = Dispatcher("a worker", {**copies, **RingServing(holdings).operations()})
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pair = [Channel(ours, name="the worker").start(), Channel(theirs, worker.serve).start()]
    yield pair[0]
    for each in pair:
        each.close()
        assert each.closed.wait(5)


@pytest.mark.parametrize("count", COUNTS)
def test_a_ring_of_any_number_of_pieces_comes_whole_and_in_order(channel: Channel, made: Made, count: int) -> None:
    made.fill(count)
    before = open_descriptors()
    slots, fds = WorkerRings(channel).make(COPY, "llm/7", 4096, 4, 2)
    assert (slots, [os.fstat(fd).st_ino for fd in fds]) == (2, made.inodes())
    close_all(fds)
    until(lambda: open_descriptors() <= before or None, 20, "the worker has closed its duplicates")


@pytest.mark.parametrize("count", [0, *COUNTS])
def test_a_sealed_copy_of_any_number_of_segments_comes_whole(channel: Channel, made: Made, count: int) -> None:
    made.fill(count)
    before = open_descriptors()
    table, *segments = WorkerCopies(channel).seal(COPY, ABOUT)
    assert SealedTable.from_fd(table) == made.seal(ABOUT)
    assert [os.fstat(fd).st_ino for fd in segments] == made.inodes()
    close_all([table, *segments])
    until(lambda: open_descriptors() <= before or None, 20, "the worker has closed its duplicates")


def test_a_ring_that_is_given_up_meanwhile_leaves_no_descriptor(
    channel: Channel, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.fill(MAX_DESCRIPTORS + 1)
    before, ring = open_descriptors(), made.ring

    def make_ring(*_how: object) -> Any:
        made.lost = True
        return ring

    monkeypatch.setattr(serving_rings, "make_ring", make_ring)
    with pytest.raises(WrongState, match="there is no ring"):
        WorkerRings(channel).make(COPY, "llm/7", 4096, 4, 2)
    until(lambda: open_descriptors() <= before or None, 20, "all are closed")


def test_segments_that_are_given_up_meanwhile_leave_no_descriptor(
    channel: Channel, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.fill(MAX_DESCRIPTORS + 1)
    before = open_descriptors()
    answers = iter([made.memory, []])
    monkeypatch.setattr(CopyServing, "_segments", lambda _serving, _copy: next(answers))
    with pytest.raises(RolledBack, match=f"gave {BATCH} descriptors, and said that it has {MAX_DESCRIPTORS + 2}"):
        WorkerCopies(channel).seal(COPY, ABOUT)
    until(lambda: open_descriptors() <= before or None, 20, "all are closed")
