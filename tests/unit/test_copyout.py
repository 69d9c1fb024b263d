"""Copies by an agent: every byte once, in messages that fit, counted against what there is, and ended by a deadline."""

import os
from collections import Counter
from itertools import pairwise

import pytest
from channels import open_descriptors
from hypothesis import given
from hypothesis import strategies as st

from gcr.drain import HandleSpec
from gcr.engine import copyout
from gcr.engine.copyout import AgentCopy, StagedCopy, create, frames, refuse_without_room
from gcr.errors import DeadlinePassed, NoRoom, RolledBack
from gcr.memory.layout import DamagedTable, SealedHandle, SealedSegment, SealedTable
from gcr.protocol.agentwire import CopyBatch, CopyRecord, CountRecord
from gcr.protocol.operations.operation import Done
from gcr.protocol.wire import MAX_DESCRIPTORS, MAX_FRAME, FrameType

GPU, OTHER = "GPU-a", "GPU-b"


def table(device: str, sizes: list[int], segments: list[int], first: int = 1) -> SealedTable:
    at, handles = 0, []
    for id, size in enumerate(sizes, first):
        handles.append(SealedHandle(HandleSpec(id, size), device, at))
        at += size
    return SealedTable("llm", 1, 2, 3, {}, tuple(handles), (), tuple(SealedSegment(device, size) for size in segments))


def staged(*tables: SealedTable) -> StagedCopy:
    return StagedCopy(tables, list(range(sum(1 + len(each.segments) for each in tables))))


class Agent:
    """Copies as told; `pace`: records an answer."""

    def __init__(self, pace: int = 1 << 30) -> None:
        self.pace = pace
        self.seen: list[tuple[CopyRecord, int]] = []  # record, its descriptor
        self.made: list[int] = []
        self.room = 1 << 60

    def copy(self, _way: FrameType, batch: CopyBatch, segments: list[int], _timeout: float) -> CountRecord:
        done = batch.records[: self.pace]
        self.seen += [(each, segments[each.segment]) for each in done]
        return CountRecord(batch.transaction, len(done), sum(each.size for each in done))

    def create(self, _transaction: int, ids: list[int]) -> None:
        if len(ids) > self.room:
            raise NoRoom("full", missing=None)
        self.room -= len(ids)
        self.made += ids


sizes_and_segments = st.lists(st.integers(1, 300), min_size=1, max_size=20).flatmap(
    lambda sizes: st.tuples(
        st.just(sizes),
        st.lists(st.integers(1, 200), min_size=1, max_size=8).map(lambda parts: [*parts, sum(sizes)]),
    )
)


@given(sizes_and_segments, st.integers(1, 100))
def test_pieces_cover_every_byte_once_and_lie_in_one_segment(drawn: tuple[list[int], list[int]], piece: int) -> None:
    sizes, segments = drawn
    before, copyout.PIECE = copyout.PIECE, piece
    try:
        pieces = list(staged(table(GPU, sizes, segments)).pieces(GPU))
    finally:
        copyout.PIECE = before
    assert all(0 < each.size <= piece for each in pieces)
    assert all(each.segment_offset + each.size <= segments[each.segment - 1] for each in pieces)
    moved = Counter[int]()
    for each in pieces:
        assert each.handle_offset == moved[each.id]
        moved[each.id] += each.size
    assert moved == dict(enumerate(sizes, 1))
    line = [sum(segments[: each.segment - 1]) + each.segment_offset for each in pieces]
    assert all(then - now == each.size for (now, then), each in zip(pairwise(line), pieces, strict=False))


def test_the_segments_of_another_device_come_after_its_own_table() -> None:
    copy = staged(table(GPU, [10], [10]), table(OTHER, [20, 5], [12, 13], first=2))
    assert [(each.id, each.segment, each.size) for each in copy.pieces(OTHER)] == [(2, 3, 12), (2, 4, 8), (3, 4, 5)]
    assert [(each.id, each.segment) for each in copy.pieces(GPU)] == [(1, 1)]
    assert [each.id for each in copy.pieces(OTHER, wanted={3})] == [3]
    assert copy.devices() == [GPU, OTHER]


def test_messages_fit_into_frames_and_name_their_own_descriptors() -> None:
    many = [CopyRecord(1, 0, 0, 1, segment) for segment in range(600) for _ in range(8)]
    made = list(frames(iter(many), list(range(1000, 1600))))
    assert sum(len(records) for records, _ in made) == len(many)
    again = [fds[each.segment] - 1000 for records, fds in made for each in records]
    assert again == [each.segment for each in many]
    for records, fds in made:
        assert len(fds) <= MAX_DESCRIPTORS
        assert len(CopyBatch(1, tuple(records), 1).pack()) < MAX_FRAME - 64


def test_a_copy_goes_on_where_the_agent_stopped_and_tells_how_far_it_is() -> None:
    agent, told = Agent(pace=1), []
    copy = AgentCopy(agent, 7, staged(table(GPU, [5, 6], [8, 8])), tell=lambda *report: told.append(report))  # type: ignore[arg-type]
    copy.run(FrameType.COPY_OUT, 10.0)
    assert [each.size for each, _ in agent.seen] == [5, 3, 3]
    assert [fd for _, fd in agent.seen] == [1, 1, 2]
    assert told == [(GPU, Done(5)), (GPU, Done(8)), (GPU, Done(11))]
    assert copy.moved == {GPU: 11}


@pytest.mark.parametrize("pace", [0, -1])
def test_an_agent_that_does_nothing_is_not_asked_for_ever(pace: int) -> None:
    with pytest.raises(RolledBack, match="pieces"):
        AgentCopy(Agent(pace=pace), 7, staged(table(GPU, [5], [8]))).run(FrameType.COPY_OUT, 10.0)  # type: ignore[arg-type]


def test_bytes_that_were_not_copied_are_missed() -> None:
    class Liar(Agent):
        def copy(self, *arguments: object) -> CountRecord:  # type: ignore[override]
            return CountRecord(7, 1, 4)

    with pytest.raises(RolledBack, match="4 bytes were copied, there are 5"):
        AgentCopy(Liar(), 7, staged(table(GPU, [5], [8]))).run(FrameType.COPY_OUT, 10.0)  # type: ignore[arg-type]


def test_the_time_is_up() -> None:
    agent = Agent()
    with pytest.raises(DeadlinePassed):
        AgentCopy(agent, 7, staged(table(GPU, [5], [8]))).run(FrameType.COPY_IN, 0.0)  # type: ignore[arg-type]
    assert agent.seen == []


def test_a_caller_that_left_ends_it() -> None:
    def check() -> None:
        raise DeadlinePassed("enough")

    with pytest.raises(DeadlinePassed, match="enough"):
        AgentCopy(Agent(), 7, staged(table(GPU, [5], [8])), check=check).run(FrameType.COPY_IN, 9.0)  # type: ignore[arg-type]


def test_what_is_missing_on_the_device_is_said() -> None:
    agent = Agent()
    agent.room = 0
    with pytest.raises(NoRoom) as caught:
        create(agent, 7, {1: 100, 2: 50}, lambda: {GPU: 30}, lambda: None)  # type: ignore[arg-type]
    assert (caught.value.missing, caught.value.device) == (120, GPU), "the daemon can say who has the device"
    with pytest.raises(NoRoom, match=f"{GPU} and {OTHER}") as caught:
        create(agent, 7, {1: 100, 2: 50}, lambda: {GPU: 30, OTHER: 9}, lambda: None)  # type: ignore[arg-type]
    assert (caught.value.missing, caught.value.device) == (111, None)
    create(Agent(), 7, {1: 100}, dict, lambda: pytest.fail("there is room"))  # type: ignore[arg-type]
    with pytest.raises(NoRoom, match="30 B free, 70 B short of the 100 B wanted") as caught:
        refuse_without_room({GPU: 100, OTHER: 5}, {GPU: 30, OTHER: 5})
    assert caught.value.missing == 70
    refuse_without_room({GPU: 100}, {GPU: 100})


def test_what_takes_the_room_for_a_moment_only_is_let_go_of() -> None:
    agent = Agent()
    enough, agent.room = agent.room, 0
    create(agent, 7, {1: 100, 2: 50}, lambda: {GPU: 30}, lambda: setattr(agent, "room", enough))  # type: ignore[arg-type]


def test_what_was_staged_is_read_and_its_descriptors_are_closed() -> None:
    before = open_descriptors()
    copy = StagedCopy.of([table(GPU, [5], [8]).to_memfd(), os.memfd_create("segment")])
    assert copy.sizes() == {1: 5}
    copy.close()
    copy.close()
    assert open_descriptors() == before


@pytest.mark.parametrize("extra", [0, 2])
def test_what_does_not_fit_together_is_refused_and_closed(extra: int) -> None:
    before = open_descriptors()
    with pytest.raises(RolledBack if extra == 0 else (DamagedTable, RolledBack)):
        StagedCopy.of([table(GPU, [5], [8]).to_memfd(), *(os.memfd_create("segment") for _ in range(extra))])
    assert open_descriptors() == before
