"""Frames and records: there and back again, and nothing but BadFrame for what does not parse."""

import re
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gcr.protocol import agentwire, wire
from gcr.protocol.agentwire import (
    CopyBatch,
    CopyRecord,
    ExportBatch,
    ExportReply,
    HandleRecord,
    IdList,
    MappingBatch,
    MovedDevices,
    MovedRecord,
    StatusReply,
    TransactionRecord,
)
from gcr.protocol.record import BadFrame, Record
from gcr.protocol.wire import (
    ErrorCode,
    ErrorRecord,
    Frame,
    FrameHeader,
    FrameType,
    HandleFlag,
    HelloRecord,
    MappingRecord,
    StuckError,
    StuckRecord,
    decode,
    encode,
)

RECORDS = [k for k in vars(wire).values() if isinstance(k, type) and issubclass(k, Record) and k is not Record]
COMPOUNDS = [StatusReply, ExportBatch, MappingBatch, StuckError, IdList, CopyBatch, MovedDevices]


def field_values(code: str) -> st.SearchStrategy:
    if code == "16s":
        return st.binary(min_size=16, max_size=16)
    if code.endswith("s"):
        text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
        return text.filter(lambda t: len(t.encode()) <= int(code[:-1]))
    bits = 8 * struct.calcsize(code)
    return st.integers(-(1 << 31), (1 << 31) - 1) if code == "i" else st.integers(0, (1 << bits) - 1)


def record_of(kind: type[Record]) -> st.SearchStrategy:
    codes = {name: code for name, code in kind.FIELDS if name != "reserved"}
    return st.fixed_dictionaries({name: field_values(code) for name, code in codes.items()}).map(lambda f: kind(**f))


def drawn_bytes() -> list[bytes]:
    """The example of the module's drawing, field by field."""
    (line,) = [line for line in wire.__doc__.splitlines() if re.match(r"\s+47 43 52 57 \|", line)]
    return [bytes.fromhex(part) for part in line.split("|")]


def test_the_drawing_shows_the_bytes_of_a_real_frame():
    parts = drawn_bytes()
    frame = Frame(FrameType.RESUME, 0x0102, TransactionRecord(7).pack())
    assert encode(frame) == b"".join(parts)
    assert [len(part) for part in parts] == [4, 2, 2, 8, 4, 4, 8]
    assert decode(b"".join(parts)) == frame


@settings(suppress_health_check=[HealthCheck.too_slow])  # other tests run beside it
@given(st.sampled_from(RECORDS).flatmap(record_of), st.binary(max_size=8), st.binary(max_size=8))
def test_a_record_survives_the_wire_wherever_it_lies(record, before, after):
    packed = record.pack()
    assert len(packed) == record.SIZE
    assert type(record).unpack(before + packed + after, len(before)) == record


@given(st.sampled_from(RECORDS), st.data())
def test_a_truncated_record_is_a_bad_frame(kind, data):
    with pytest.raises(BadFrame):
        kind.unpack(bytes(data.draw(st.integers(0, kind.SIZE - 1))))


def test_an_offset_before_the_data_is_a_bad_frame():
    with pytest.raises(BadFrame):
        TransactionRecord.unpack(bytes(16), -8)


@given(st.sampled_from([*RECORDS, *COMPOUNDS]), st.binary(max_size=400))
def test_garbage_is_read_or_refused_and_nothing_else(kind, garbage):
    try:
        kind.unpack(garbage)
    except BadFrame:
        pass


@pytest.mark.parametrize("text", ["x" * 65, "ü" * 33, "a\0b"])
def test_text_that_does_not_fit_is_refused_not_cut(text):
    with pytest.raises(ValueError, match="job of HelloRecord"):
        HelloRecord(role=1, job=text).pack()


def test_text_cut_inside_a_character_still_reads():
    packed = bytearray(ErrorRecord(ErrorCode.DRIVER, message="x" * 112).pack())
    packed[-1] = 0xC3  # the first byte of "ü"
    assert ErrorRecord.unpack(bytes(packed)).message == "x" * 111 + "�"


def test_reserved_fields_are_zero_on_the_wire_and_ignored_when_read():
    packed = bytearray(ErrorRecord(1, 2, 3, "v").pack())
    assert packed[12:16] == b"\0\0\0\0"
    packed[12:16] = b"\xff\xff\xff\xff"
    assert ErrorRecord.unpack(bytes(packed)) == ErrorRecord(1, 2, 3, "v")


def many(kind):
    return st.lists(record_of(kind), max_size=5).map(tuple)


@given(record_of(agentwire.StatusRecord), many(agentwire.DeviceRecord), many(agentwire.UncoveredRecord))
def test_a_status_reply_counts_what_follows(status, devices, uncovered):
    back = StatusReply.unpack(StatusReply(status, devices, uncovered).pack())
    assert (back.devices, back.uncovered) == (devices, uncovered)
    assert (back.status.devices, back.status.uncovered) == (len(devices), len(uncovered))
    assert back.status.generation == status.generation


@given(many(HandleRecord), st.booleans())
def test_an_export_batch_comes_back(handles, more):
    batch = ExportBatch.of(7, handles, more=more)
    assert ExportBatch.unpack(batch.pack()) == batch
    assert batch.reply.last_id == (handles[-1].id if handles else 0)


@given(many(MappingRecord), st.booleans())
def test_a_mapping_batch_comes_back(mappings, more):
    batch = MappingBatch.of(7, 99, mappings, more=more)
    assert MappingBatch.unpack(batch.pack()) == batch


@given(many(CopyRecord), st.integers(0, (1 << 32) - 1))
def test_a_copy_batch_comes_back(records, budget):
    batch = CopyBatch(7, records, budget)
    assert CopyBatch.unpack(batch.pack()) == batch
    assert len(batch.pack()) == agentwire.CopyRequest.SIZE + len(records) * CopyRecord.SIZE


@given(many(MovedRecord))
def test_moved_devices_come_back(records):
    moved = MovedDevices(7, records)
    assert MovedDevices.unpack(moved.pack()) == moved


def test_only_handles_that_leave_as_descriptors_are_handed():
    flags = [0, HandleFlag.KEPT, HandleFlag.UNEXPORTABLE, HandleFlag.KEPT | HandleFlag.UNEXPORTABLE]
    batch = ExportBatch.of(7, [HandleRecord(i, 4096, flags=f) for i, f in enumerate(flags, 1)], more=False)
    assert [handle.id for handle in batch.handed] == [1]


@given(st.lists(st.integers(0, (1 << 64) - 1), max_size=30).map(tuple))
def test_an_id_list_comes_back(ids):
    assert IdList.unpack(IdList(3, ids).pack()) == IdList(3, ids)
    assert len(IdList(3, ids).pack()) == IdList.SIZE + 8 * len(ids)


def test_longer_records_of_a_newer_peer_are_skipped_over():
    longer = [HandleRecord(id, 4096).pack() + b"newer..." for id in (1, 2)]
    payload = ExportReply(7, 2, 2, 0, HandleRecord.SIZE + 8).pack() + b"".join(longer)
    assert [handle.id for handle in ExportBatch.unpack(payload).handles] == [1, 2]


@pytest.mark.parametrize("size", [1, HandleRecord.SIZE - 1, HandleRecord.SIZE + 1])
def test_a_record_size_that_cannot_be_is_a_bad_frame(size):
    payload = ExportReply(7, 1, 1, 0, size).pack() + HandleRecord(1, 4096).pack()
    with pytest.raises(BadFrame):
        ExportBatch.unpack(payload)


def test_a_count_beyond_the_payload_is_a_bad_frame_at_once():
    payload = ExportReply(7, 1, 0xFFFFFFFF, 0, HandleRecord.SIZE).pack()
    with pytest.raises(BadFrame, match="do not fit"):
        ExportBatch.unpack(payload)


def test_stuck_streams_are_read_for_stuck_only():
    streams = (StuckRecord(1, 2, 0, 3), StuckRecord(4, 5, 1, 0))
    assert StuckError.unpack(StuckError(ErrorRecord(ErrorCode.STUCK), streams).pack()).streams == streams
    other = ErrorRecord(ErrorCode.DRIVER, vendor_error=-3, details=2)
    assert StuckError.unpack(other.pack()).streams == ()


@given(st.integers(0, 0xFFFF), st.integers(0, (1 << 64) - 1), st.binary(max_size=200), st.integers(0, 253))
def test_a_frame_comes_back(kind, request, payload, fds):
    frame = Frame(kind, request, payload, tuple(range(fds)))
    assert decode(encode(frame), frame.fds) == frame


@given(st.binary(max_size=100), st.integers(0, 3))
def test_no_garbage_packet_raises_anything_but_bad_frame(packet, fds):
    with pytest.raises(BadFrame):
        decode(packet, tuple(range(fds)))


GOOD = encode(Frame(FrameType.STATUS, 1, b"12345678"))


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(GOOD[:-1], id="cut"),
        pytest.param(GOOD + b"x", id="too long"),
        pytest.param(b"X" + GOOD[1:], id="magic"),
        pytest.param(GOOD[:4] + b"\x02" + GOOD[5:], id="version"),
        pytest.param(GOOD[:20] + b"\x01" + GOOD[21:], id="a descriptor that did not come"),
    ],
)
def test_a_packet_that_is_not_a_frame_is_refused(packet):
    assert decode(GOOD) == Frame(FrameType.STATUS, 1, b"12345678")
    with pytest.raises(BadFrame):
        decode(packet)


def test_descriptors_that_were_not_announced_are_refused():
    with pytest.raises(BadFrame, match="0 descriptors announced, 1 came"):
        decode(GOOD, (5,))


@pytest.mark.parametrize("kind", [FrameType.HELLO, wire.ERROR])
def test_only_hello_and_its_refusal_cross_versions(kind):
    packet = FrameHeader(wire.MAGIC, 9, kind, 1, 0, 0).pack()
    assert decode(packet).type == kind


def test_the_largest_frame_passes_and_a_larger_one_is_refused():
    room = wire.MAX_FRAME - FrameHeader.SIZE
    assert len(decode(encode(Frame(16, 1, bytes(room)))).payload) == room
    with pytest.raises(ValueError, match="too large"):
        encode(Frame(16, 1, bytes(room + 1)))
    with pytest.raises(ValueError, match="too large"):
        encode(Frame(16, 1, b"", range(wire.MAX_DESCRIPTORS + 1)))
    oversize = FrameHeader(wire.MAGIC, wire.VERSION, 16, 1, room + 1, 0).pack() + bytes(room + 1)
    with pytest.raises(BadFrame):
        decode(oversize)
