"""The gcr wire protocol in Python: the mirror of shim/include/gcr/wire.h, where every rule is explained.

One frame is one SOCK_SEQPACKET packet of at most MAX_FRAME bytes; descriptors travel with the frame that names them.
Numbers are little-endian. This is a request to resume transaction 7 (0x07), the 258th (0x0102) of its connection:

    magic       | version | type   | request                 | length      | descriptors | TransactionRecord
    47 43 52 57 | 01 00   | 16 00  | 02 01 00 00 00 00 00 00 | 08 00 00 00 | 00 00 00 00 | 07 00 00 00 00 00 00 00

Its reply has the same request and type 0x8016; an error has type 0xffff and an ErrorRecord.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

from gcr.codes import CARRIED_REASONS as CARRIED_REASONS
from gcr.codes import ERROR as ERROR
from gcr.codes import JSON_TYPES as JSON_TYPES
from gcr.codes import MAGIC as MAGIC
from gcr.codes import MAX_DESCRIPTORS as MAX_DESCRIPTORS
from gcr.codes import MAX_FRAME as MAX_FRAME
from gcr.codes import OCCUPIED_DEVICES as OCCUPIED_DEVICES
from gcr.codes import REFUSED_REASONS as REFUSED_REASONS
from gcr.codes import REPLY as REPLY
from gcr.codes import UNANSWERED_TYPES as UNANSWERED_TYPES
from gcr.codes import VERSION as VERSION
from gcr.codes import AgentFlag as AgentFlag
from gcr.codes import AgentPhase as AgentPhase
from gcr.codes import ErrorCode as ErrorCode
from gcr.codes import FrameType as FrameType
from gcr.codes import HandleFlag as HandleFlag
from gcr.codes import Reason as Reason
from gcr.codes import Role as Role
from gcr.codes import SnapshotPhase as SnapshotPhase
from gcr.codes import SnapshotStep as SnapshotStep
from gcr.codes import Vendor as Vendor
from gcr.record import I32, U8, U16, U32, U64, BadFrame, Record, Uuid


@dataclass(frozen=True, slots=True)
class FrameHeader(Record):
    magic: U32
    version: U16
    type: U16
    request: U64
    length: U32
    descriptors: U32


@dataclass(frozen=True, slots=True)
class HelloRecord(Record):
    role: U32
    oldest: U16 = VERSION
    newest: U16 = VERSION
    vendor: U32 = 0
    phase: U32 = 0
    flags: U32 = 0
    pid_label: U32 = 0
    transaction: U64 = 0
    generation: U64 = 0
    job: Annotated[str, "64s"] = ""
    token: Annotated[str, "40s"] = ""
    version: Annotated[str, "24s"] = ""


@dataclass(frozen=True, slots=True)
class WelcomeRecord(Record):
    version: U16
    reserved: ClassVar[U16] = 0
    daemon_pid: U32
    daemon_epoch: U64
    daemon_version: Annotated[str, "24s"]


@dataclass(frozen=True, slots=True)
class OccupiedRecord(Record):
    """A row of the page that agents map: gcr has memory of this device for a moment, or has not."""

    uuid: Uuid
    occupied: U32 = 0
    reserved: ClassVar[U32] = 0


@dataclass(frozen=True, slots=True)
class TransactionRecord(Record):
    transaction: U64


@dataclass(frozen=True, slots=True)
class CountRecord(Record):
    transaction: U64
    count: U64
    bytes: U64


@dataclass(frozen=True, slots=True)
class IdListHead(Record):
    """What wire.h calls IdList; the ids follow it."""

    transaction: U64
    count: U32
    reserved: ClassVar[U32] = 0


@dataclass(frozen=True, slots=True)
class ExportRequest(Record):
    transaction: U64
    after_id: U64 = 0
    limit: U32 = MAX_DESCRIPTORS
    reserved: ClassVar[U32] = 0


@dataclass(frozen=True, slots=True)
class ExportReply(Record):
    transaction: U64
    last_id: U64
    count: U32
    more: U32
    record_size: U32
    reserved: ClassVar[U32] = 0


@dataclass(frozen=True, slots=True)
class HandleRecord(Record):
    id: U64
    size: U64
    device: U32 = 0
    mappings: U32 = 0
    type: U32 = 1
    asked_types: U32 = 0
    compression: U8 = 0
    rdma_capable: U8 = 0
    usage: U16 = 0
    flags: U32 = 0


@dataclass(frozen=True, slots=True)
class MappingRecord(Record):
    id: U64
    address: U64
    offset: U64
    size: U64
    read_devices: U32
    write_devices: U32


@dataclass(frozen=True, slots=True)
class QuiesceRequest(Record):
    transaction: U64
    deadline_ms: U32
    pulse_ms: U32


@dataclass(frozen=True, slots=True)
class StuckRecord(Record):
    stream: U64
    context: U64
    device: U32
    in_flight: U32


@dataclass(frozen=True, slots=True)
class StageRequest(Record):
    transaction: U64
    offset: U32
    total: U32


@dataclass(frozen=True, slots=True)
class CopyRequest(Record):
    transaction: U64
    count: U32
    record_size: U32
    budget_ms: U32
    reserved: ClassVar[U32] = 0


@dataclass(frozen=True, slots=True)
class CopyRecord(Record):
    """One piece of one handle, and where it lies in the segment that is descriptor `segment` of its frame."""

    id: U64
    handle_offset: U64
    segment_offset: U64
    size: U64
    segment: U32
    reserved: ClassVar[U32] = 0


@dataclass(frozen=True, slots=True)
class SnapshotRequest(Record):
    transaction: U64
    step: U32
    reserved: ClassVar[U32] = 0


@dataclass(frozen=True, slots=True)
class SnapshotReply(Record):
    transaction: U64
    phase: U32
    reserved: ClassVar[U32] = 0


@dataclass(frozen=True, slots=True)
class MovedRequest(Record):
    transaction: U64
    count: U32
    record_size: U32


@dataclass(frozen=True, slots=True)
class MovedRecord(Record):
    """Another device in the place of one."""

    old_uuid: Uuid
    new_uuid: Uuid


@dataclass(frozen=True, slots=True)
class StatusRecord(Record):
    phase: U32 = 0
    flags: U32 = 0
    transaction: U64 = 0
    generation: U64 = 0
    covered_bytes: U64 = 0
    allocations: U64 = 0
    pinned_host_bytes: U64 = 0
    handles: U32 = 0
    contexts: U32 = 0
    devices: U32 = 0
    uncovered: U32 = 0
    captures: U32 = 0
    in_flight: U32 = 0
    gated_calls: U64 = 0


@dataclass(frozen=True, slots=True)
class DeviceRecord(Record):
    uuid: Uuid
    ordinal: U32
    handles: U32
    covered_bytes: U64


@dataclass(frozen=True, slots=True)
class UncoveredRecord(Record):
    reason: U32
    refuse: U32
    bytes: U64
    count: U64


@dataclass(frozen=True, slots=True)
class ErrorRecord(Record):
    code: U32
    vendor_error: I32 = 0
    details: U32 = 0
    reserved: ClassVar[U32] = 0
    message: Annotated[str, "112s"] = ""


@dataclass(frozen=True, slots=True)
class IdList:
    SIZE: ClassVar[int] = IdListHead.SIZE
    transaction: int
    ids: tuple[int, ...]

    def pack(self) -> bytes:
        return IdListHead(self.transaction, len(self.ids)).pack() + struct.pack(f"<{len(self.ids)}Q", *self.ids)

    @classmethod
    def unpack(cls, data: bytes, offset: int = 0) -> Self:
        head = IdListHead.unpack(data, offset)
        if len(data) - offset - cls.SIZE < head.count * 8:
            raise BadFrame(f"{head.count} ids do not fit into {len(data) - offset - cls.SIZE} bytes")
        return cls(head.transaction, struct.unpack_from(f"<{head.count}Q", data, offset + cls.SIZE))


@dataclass(frozen=True, slots=True)
class StatusReply:
    """Reply to STATUS. `pack` counts the records itself."""

    status: StatusRecord
    devices: tuple[DeviceRecord, ...] = ()
    uncovered: tuple[UncoveredRecord, ...] = ()

    def pack(self) -> bytes:
        counted = replace(self.status, devices=len(self.devices), uncovered=len(self.uncovered))
        return _concat(counted, *self.devices, *self.uncovered)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        status = StatusRecord.unpack(data)
        devices = DeviceRecord.unpack_many(data, StatusRecord.SIZE, status.devices)
        after = StatusRecord.SIZE + len(devices) * DeviceRecord.SIZE
        return cls(status, devices, UncoveredRecord.unpack_many(data, after, status.uncovered))


@dataclass(frozen=True, slots=True)
class ExportBatch:
    """Reply to EXPORT; the frame has a descriptor for each of `handed`, in that order."""

    reply: ExportReply
    handles: tuple[HandleRecord, ...]

    @property
    def handed(self) -> list[HandleRecord]:
        """The handles that are not KEPT by others, nor UNEXPORTABLE."""
        return [each for each in self.handles if not each.flags & (HandleFlag.KEPT | HandleFlag.UNEXPORTABLE)]

    @classmethod
    def of(cls, transaction: int, handles: Sequence[HandleRecord], *, more: bool) -> Self:
        last = handles[-1].id if handles else 0
        return cls(ExportReply(transaction, last, len(handles), int(more), HandleRecord.SIZE), tuple(handles))

    def pack(self) -> bytes:
        return _concat(self.reply, *self.handles)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        reply = ExportReply.unpack(data)
        return cls(reply, HandleRecord.unpack_many(data, ExportReply.SIZE, reply.count, reply.record_size))


@dataclass(frozen=True, slots=True)
class MappingBatch:
    """Reply to MAPPINGS; `reply.last_id` is a cursor, not an id."""

    reply: ExportReply
    mappings: tuple[MappingRecord, ...]

    @classmethod
    def of(cls, transaction: int, cursor: int, mappings: Sequence[MappingRecord], *, more: bool) -> Self:
        return cls(ExportReply(transaction, cursor, len(mappings), int(more), MappingRecord.SIZE), tuple(mappings))

    def pack(self) -> bytes:
        return _concat(self.reply, *self.mappings)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        reply = ExportReply.unpack(data)
        return cls(reply, MappingRecord.unpack_many(data, ExportReply.SIZE, reply.count, reply.record_size))


@dataclass(frozen=True, slots=True)
class CopyBatch:
    """Request COPY_OUT or COPY_IN; the frame's descriptors are the segments that the records name by index."""

    transaction: int
    records: tuple[CopyRecord, ...]
    budget_ms: int

    def pack(self) -> bytes:
        head = CopyRequest(self.transaction, len(self.records), CopyRecord.SIZE, self.budget_ms)
        return _concat(head, *self.records)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        head = CopyRequest.unpack(data)
        records = CopyRecord.unpack_many(data, CopyRequest.SIZE, head.count, head.record_size)
        return cls(head.transaction, records, head.budget_ms)


@dataclass(frozen=True, slots=True)
class MovedDevices:
    """Request MOVED."""

    transaction: int
    records: tuple[MovedRecord, ...]

    def pack(self) -> bytes:
        return _concat(MovedRequest(self.transaction, len(self.records), MovedRecord.SIZE), *self.records)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        head = MovedRequest.unpack(data)
        return cls(head.transaction, MovedRecord.unpack_many(data, MovedRequest.SIZE, head.count, head.record_size))


@dataclass(frozen=True, slots=True)
class StuckError:
    """Payload of an ERROR frame; `streams` only for ErrorCode.STUCK."""

    error: ErrorRecord
    streams: tuple[StuckRecord, ...] = ()

    def pack(self) -> bytes:
        return _concat(replace(self.error, details=len(self.streams)), *self.streams)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        error = ErrorRecord.unpack(data)
        streams = error.details if error.code == ErrorCode.STUCK else 0
        return cls(error, StuckRecord.unpack_many(data, ErrorRecord.SIZE, streams))


@dataclass(slots=True)
class Frame:
    """One packet. `type` is a FrameType, REPLY | FrameType, or ERROR; a type of a newer peer is just a number."""

    type: int
    request: int
    payload: bytes = b""
    fds: Sequence[int] = ()


def encode(frame: Frame) -> bytes:
    """The packet of a frame; its descriptors go beside it. Raises ValueError when it is too large."""
    if FrameHeader.SIZE + len(frame.payload) > MAX_FRAME or len(frame.fds) > MAX_DESCRIPTORS:
        raise ValueError(f"a frame of {len(frame.payload)} bytes and {len(frame.fds)} descriptors is too large")
    header = FrameHeader(MAGIC, VERSION, frame.type, frame.request, len(frame.payload), len(frame.fds))
    return header.pack() + frame.payload


def decode(packet: bytes, fds: Sequence[int] = ()) -> Frame:
    """The frame of a packet. Raises BadFrame; the descriptors stay the caller's to close."""
    header = FrameHeader.unpack(packet)
    if header.magic != MAGIC:
        raise BadFrame(f"magic {header.magic:#x}")
    if header.version != VERSION and header.type not in (FrameType.HELLO, ERROR):
        raise BadFrame(f"protocol version {header.version}")  # only HELLO and its refusal cross versions
    if len(packet) > MAX_FRAME or header.length != len(packet) - FrameHeader.SIZE:
        raise BadFrame(f"length {header.length} in a packet of {len(packet)} bytes")
    if header.descriptors != len(fds):
        raise BadFrame(f"{header.descriptors} descriptors announced, {len(fds)} came")
    return Frame(header.type, header.request, packet[FrameHeader.SIZE :], tuple(fds))


def _concat(*records: Record) -> bytes:
    return b"".join(record.pack() for record in records)
