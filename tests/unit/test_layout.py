"""Layouts and spans against a model that moves single bytes; sealed tables against every kind of damage."""

import fcntl
import os
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.drain import DeviceRange, HandleSpec, Span
from gcr.memory.layout import (
    DamagedTable,
    Layout,
    SealedHandle,
    SealedSegment,
    SealedTable,
    Segment,
    pack,
    spans,
    spans_by_segment,
)
from gcr.protocol.wire import MappingRecord

HOST, DEVICE = 0x1000_0000, 0x7000_0000


@st.composite
def cases(draw):
    """Ranges with gaps between some handles, a part of the handles wanted, segments contiguous or not, in any order."""
    ranges, sizes, id, address = [], {}, 1, DEVICE
    for count in draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)):
        offsets, end = {}, 0
        for _ in range(count):
            end += draw(st.sampled_from([0, 0, 0, 3]))
            offsets[id] = end
            sizes[id] = draw(st.integers(1, 9))
            end += sizes[id]
            id += 1
        ranges.append(DeviceRange(address, end, offsets))
        address += end + draw(st.sampled_from([0, 100]))
    wanted = {id: size for id, size in sizes.items() if draw(st.booleans())}
    need, segments, host = sum(wanted.values()), [], HOST
    while need > 0:
        size = draw(st.integers(1, 12))
        segments.append(Segment(-1, host, size))
        host += size + draw(st.sampled_from([0, 50]))
        need -= size
    if draw(st.booleans()):
        segments.reverse()
    return ranges, wanted, segments


def line_of(segments) -> list[int]:
    """The host address of every arena offset."""
    return [segment.address + byte for segment in segments for byte in range(segment.size)]


def moves_of(ranges, sizes, layout, segments) -> set[tuple[int, int]]:
    """Every byte's device and host address, one by one."""
    line = line_of(segments)
    return {
        (where.address + at + byte, line[layout.offsets[id] + byte])
        for where in ranges
        for id, at in where.offsets.items()
        if id in sizes
        for byte in range(sizes[id])
    }


@given(cases())
def test_spans_move_every_byte_exactly_once_and_to_where_the_layout_says(case):
    ranges, sizes, segments = case
    layout = pack(ranges, sizes)
    found = spans(ranges, sizes, layout, segments)
    moved = [(span.device + byte, span.host + byte) for span in found for byte in range(span.size)]
    assert len(moved) == len(set(moved)) == sum(sizes.values())
    assert set(moved) == moves_of(ranges, sizes, layout, segments)


@given(cases())
def test_no_two_neighbouring_spans_could_be_one(case):
    ranges, sizes, segments = case
    found = spans(ranges, sizes, pack(ranges, sizes), segments)
    segment_borders = {segment.address for segment in segments}
    range_borders = {where.address for where in ranges}
    for one, next in pairwise(found):
        contiguous = (one.device + one.size, one.host + one.size) == (next.device, next.host)
        assert not contiguous or next.host in segment_borders or next.device in range_borders


@given(cases())
def test_no_span_crosses_a_border(case):
    ranges, sizes, segments = case
    for span in spans(ranges, sizes, pack(ranges, sizes), segments):
        assert any(s.address <= span.host and span.host + span.size <= s.address + s.size for s in segments)
        assert any(r.address <= span.device and span.device + span.size <= r.address + r.size for r in ranges)


@given(cases())
def test_a_layout_is_packed_without_gaps(case):
    ranges, sizes, _ = case
    layout = pack(ranges, sizes)
    taken = sorted((offset, offset + sizes[id]) for id, offset in layout.offsets.items())
    assert [start for start, _ in taken] == [0, *(end for _, end in taken)][: len(taken)]
    assert layout.size == sum(sizes.values())


@given(cases())
def test_spans_by_segment_are_the_spans_of_each_segment_from_its_first_byte_on(case):
    ranges, sizes, segments = case
    layout = pack(ranges, sizes)
    groups = spans_by_segment(ranges, sizes, layout, [segment.size for segment in segments])
    assert len(groups) <= len(segments) and all(groups)
    for group, segment in zip(groups, segments, strict=False):
        assert all(span.host >= 0 and span.host + span.size <= segment.size for span in group)
    found = [
        Span(span.device, segment.address + span.host, span.size)
        for group, segment in zip(groups, segments, strict=False)
        for span in group
    ]
    assert found == spans(ranges, sizes, layout, segments)


def test_segments_after_the_last_one_in_use_have_no_group():
    where, sizes = DeviceRange(DEVICE, 10, {1: 0}), {1: 10}
    layout = pack([where], sizes)
    assert spans_by_segment([where], sizes, layout, [10, 5]) == [[Span(DEVICE, 0, 10)]]
    assert spans_by_segment([where], sizes, Layout({1: 5}, 15), [5, 10, 5]) == [[], [Span(DEVICE, 0, 10)]]
    assert spans_by_segment([], {}, Layout({}, 0), [5]) == []


def test_handles_side_by_side_in_one_segment_are_one_copy():
    where = DeviceRange(DEVICE, 300, {1: 0, 2: 100, 3: 200})
    sizes = {1: 100, 2: 100, 3: 100}
    segment = Segment(-1, HOST, 512)
    assert spans([where], sizes, pack([where], sizes), [segment]) == [Span(DEVICE, HOST, 300)]


def test_a_layout_made_elsewhere_is_followed_whatever_order_the_device_has():
    where = DeviceRange(DEVICE, 20, {2: 0, 1: 10})
    found = spans([where], {1: 10, 2: 10}, Layout({1: 0, 2: 10}, 20), [Segment(-1, HOST, 20)])
    assert found == [Span(DEVICE + 10, HOST, 10), Span(DEVICE, HOST + 10, 10)]


def test_neighbours_on_the_device_that_lie_apart_on_the_host_stay_two_copies():
    where = DeviceRange(DEVICE, 20, {1: 0, 2: 10})
    found = spans([where], {1: 10, 2: 10}, Layout({1: 0, 2: 15}, 25), [Segment(-1, HOST, 30)])
    assert found == [Span(DEVICE, HOST, 10), Span(DEVICE + 10, HOST + 15, 10)]


def test_segments_that_are_too_small_are_refused():
    where = DeviceRange(DEVICE, 10, {1: 0})
    with pytest.raises(ValueError, match="do not fit"):
        spans([where], {1: 10}, pack([where], {1: 10}), [Segment(-1, HOST, 9)])


def test_a_handle_in_no_range_is_refused():
    with pytest.raises(ValueError, match="no range"):
        pack([], {1: 10})
    with pytest.raises(ValueError, match="no range"):
        spans([], {1: 10}, Layout({1: 0}, 10), [Segment(-1, HOST, 10)])


u32, u64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
text = st.text(max_size=12)
tables = st.builds(
    SealedTable,
    job=text,
    pid=u32,
    start_time=u64,
    transaction=u64,
    ordinals=st.dictionaries(st.integers(0, 31), text, max_size=3),
    handles=st.lists(
        st.builds(SealedHandle, st.builds(HandleSpec, u64, u64, u32, u32, u32, u32), text, u64), max_size=4
    ).map(tuple),
    mappings=st.lists(st.builds(MappingRecord, u64, u64, u64, u64, u32, u32), max_size=4).map(tuple),
    segments=st.lists(st.builds(SealedSegment, text, u64), max_size=4).map(tuple),
)
TABLE = SealedTable(
    "llm",
    4711,
    99,
    7,
    {0: "GPU-0"},
    (SealedHandle(HandleSpec(1, 4096), "GPU-0", 0),),
    (MappingRecord(1, 0x7F00_0000_0000, 0, 4096, 1, 1),),
    (SealedSegment("GPU-0", 2 << 20),),
)


@given(tables)
def test_a_table_comes_back(table):
    assert SealedTable.from_bytes(table.to_bytes()) == table


def test_every_flipped_bit_is_refused():
    good = TABLE.to_bytes()
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedTable):
            SealedTable.from_bytes(bytes(flipped))


def test_every_cut_and_every_addition_is_refused():
    good = TABLE.to_bytes()
    for length in range(len(good)):
        with pytest.raises(DamagedTable):
            SealedTable.from_bytes(good[:length])
    with pytest.raises(DamagedTable):
        SealedTable.from_bytes(good + b" ")


@pytest.mark.parametrize(
    "content", [b"null", b"[]", b"{}", b'{"version": 2}', b"[" * 100_000, b'{"version": 1}', b"\xff"]
)
def test_a_well_sealed_table_of_nonsense_is_refused(content):
    from gcr.memory import layout

    sealed = layout._MAGIC + layout._digest(content) + content
    with pytest.raises(DamagedTable, match="does not parse"):
        SealedTable.from_bytes(sealed)


def test_in_a_memfd_it_can_no_longer_be_changed():
    fd = TABLE.to_memfd()
    try:
        assert SealedTable.from_bytes(os.pread(fd, 1 << 20, 0)) == TABLE
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)
