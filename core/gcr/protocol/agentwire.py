"""The binary messages between an agent and the daemon: the part of wire.h that no other connection has.

Apart from wire.py, which every process of gcr's needs at once: a class of these takes half a millisecond to make.
"""

import struct
from collections.abc import Collection, Sequence
from typing import Annotated, ClassVar, Self

from msgspec import Struct
from msgspec.structs import replace

from gcr.protocol.codes import MAX_DESCRIPTORS, HandleFlag
from gcr.protocol.record import U8, U16, U32, U64, BadFrame, Record, Uuid, concat
from gcr.protocol.wire import MappingRecord


class OccupiedRecord(Record, frozen=True):
    """A row of the page that agents map: gcr has memory of this device for a moment, or has not."""

    uuid: Uuid
    occupied: U32 = 0
    reserved: ClassVar[U32] = 0


class TransactionRecord(Record, frozen=True):
    transaction: U64


class CountRecord(Record, frozen=True):
    transaction: U64
    count: U64
    bytes: U64


class IdListHead(Record, frozen=True):
    """The head of wire.h's IdList; the ids follow it."""

    transaction: U64
    count: U32
    reserved: ClassVar[U32] = 0


class ExportRequest(Record, frozen=True):
    transaction: U64
    after_id: U64 = 0
    limit: U32 = MAX_DESCRIPTORS
    reserved: ClassVar[U32] = 0


class ExportReply(Record, frozen=True):
    transaction: U64
    last_id: U64
    count: U32
    more: U32
    record_size: U32
    reserved: ClassVar[U32] = 0


class HandleRecord(Record, frozen=True):
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


class SharedReply(Record, frozen=True):
    transaction: U64
    process: U64
    last_id: U64
    count: U32
    more: U32
    record_size: U32
    reserved: ClassVar[U32] = 0


class SharedRecord(Record, frozen=True):
    """One handle and one other process, which owns it (FOREIGN) or was lent it."""

    id: U64
    size: U64
    process: U64
    there: U64 = 0
    device: U32 = 0
    devices: U32 = 0
    pid: U32 = 0
    flags: U32 = 0


class QuiesceRequest(Record, frozen=True):
    transaction: U64
    deadline_ms: U32
    pulse_ms: U32


class CloseRequest(Record, frozen=True):
    transaction: U64
    close: U32
    reserved: ClassVar[U32] = 0


class AdmitRequest(Record, frozen=True):
    transaction: U64
    thread: U32
    calls: U32
    patience_us: U32
    walk: U32


class AllowedRecord(Record, frozen=True):
    signature: U64
    launched: U32  # so many may be made, all told
    reserved: ClassVar[U32] = 0


class GateRecord(Record, frozen=True):
    transaction: U64
    admitted: U64 = 0
    unchanged_us: U64 = 0
    busy: U32 = 0
    in_flight: U32 = 0
    captures: U32 = 0
    held: U32 = 0
    parked: U32 = 0
    incomplete: U32 = 0


class ParkedRecord(Record, frozen=True):
    """A thread that waits at the gate, and the call that it waits with."""

    signature: U64
    thread: U32
    launched: U32
    flags: U32
    reserved: ClassVar[U32] = 0


class IncompleteRecord(Record, frozen=True):
    """A coupled launch on a stream that is not idle."""

    signature: U64
    stream: U64
    launched: U32
    reserved: ClassVar[U32] = 0
    kernel: Annotated[str, "48s"] = ""


class MadeRecord(Record, frozen=True):
    signature: U64
    launched: U32
    thread: U32  # that made them all, or SEVERAL_THREADS


class StageRequest(Record, frozen=True):
    transaction: U64
    offset: U32
    total: U32


class CopyRequest(Record, frozen=True):
    transaction: U64
    count: U32
    record_size: U32
    budget_ms: U32
    reserved: ClassVar[U32] = 0


class CopyRecord(Record, frozen=True):
    """One piece of one handle, and where it lies in the segment that is descriptor `segment` of its frame."""

    id: U64
    handle_offset: U64
    segment_offset: U64
    size: U64
    segment: U32
    reserved: ClassVar[U32] = 0


class SnapshotRequest(Record, frozen=True):
    transaction: U64
    step: U32
    reserved: ClassVar[U32] = 0


class SnapshotReply(Record, frozen=True):
    transaction: U64
    phase: U32
    reserved: ClassVar[U32] = 0


class MovedRequest(Record, frozen=True):
    transaction: U64
    count: U32
    record_size: U32


class MovedRecord(Record, frozen=True):
    """Another device in the place of one."""

    old_uuid: Uuid
    new_uuid: Uuid


class StatusRecord(Record, frozen=True):
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


class DeviceRecord(Record, frozen=True):
    uuid: Uuid
    ordinal: U32
    handles: U32
    covered_bytes: U64


class UncoveredRecord(Record, frozen=True):
    reason: U32
    refuse: U32
    bytes: U64
    count: U64


class IdList(Struct, frozen=True):
    SIZE: ClassVar[int] = IdListHead.SIZE
    transaction: int
    ids: tuple[int, ...]

    def pack(self) -> bytes:
        return IdListHead(self.transaction, len(self.ids)).pack() + struct.pack(f"<{len(self.ids)}Q", *self.ids)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        head = IdListHead.unpack(data)
        if len(data) - cls.SIZE < head.count * 8:
            raise BadFrame(f"{head.count} ids do not fit into {len(data) - cls.SIZE} bytes")
        return cls(head.transaction, struct.unpack_from(f"<{head.count}Q", data, cls.SIZE))


class StatusReply(Struct, frozen=True):
    """Reply to STATUS. `pack` counts the records itself."""

    status: StatusRecord
    devices: tuple[DeviceRecord, ...] = ()
    uncovered: tuple[UncoveredRecord, ...] = ()

    def pack(self) -> bytes:
        counted = replace(self.status, devices=len(self.devices), uncovered=len(self.uncovered))
        return concat(counted, *self.devices, *self.uncovered)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        status = StatusRecord.unpack(data)
        devices = DeviceRecord.unpack_many(data, StatusRecord.SIZE, status.devices)
        after = StatusRecord.SIZE + len(devices) * DeviceRecord.SIZE
        return cls(status, devices, UncoveredRecord.unpack_many(data, after, status.uncovered))


class GateReply(Struct, frozen=True):
    """Reply to LOOK. `pack` counts the records itself."""

    gate: GateRecord
    parked: tuple[ParkedRecord, ...] = ()
    incomplete: tuple[IncompleteRecord, ...] = ()
    made: tuple[MadeRecord, ...] = ()  # none from a shim of an earlier version

    def pack(self) -> bytes:
        counted = replace(self.gate, parked=len(self.parked), incomplete=len(self.incomplete))
        return concat(counted, *self.parked, *self.incomplete, *self.made)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        gate = GateRecord.unpack(data)
        parked = ParkedRecord.unpack_many(data, GateRecord.SIZE, gate.parked)
        after = GateRecord.SIZE + len(parked) * ParkedRecord.SIZE
        incomplete = IncompleteRecord.unpack_many(data, after, gate.incomplete)
        after += len(incomplete) * IncompleteRecord.SIZE
        made = MadeRecord.unpack_many(data, after, (len(data) - after) // MadeRecord.SIZE)
        return cls(gate, parked, incomplete, made)


class ExportBatch(Struct, frozen=True):
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

    def only(self, ids: Collection[int], fds: Sequence[int]) -> tuple[Self, Sequence[int]]:
        """Returns the part about handles of `ids`, and its descriptors out of `fds`, which has one for each handed."""
        handed = [fd for handle, fd in zip(self.handed, fds, strict=True) if handle.id in ids]
        handles = [handle for handle in self.handles if handle.id in ids]
        return self.of(self.reply.transaction, handles, more=bool(self.reply.more)), handed

    def pack(self) -> bytes:
        return concat(self.reply, *self.handles)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        reply = ExportReply.unpack(data)
        return cls(reply, HandleRecord.unpack_many(data, ExportReply.SIZE, reply.count, reply.record_size))


class MappingBatch(Struct, frozen=True):
    """Reply to MAPPINGS; `reply.last_id` is a cursor, not an id."""

    reply: ExportReply
    mappings: tuple[MappingRecord, ...]

    @classmethod
    def of(cls, transaction: int, cursor: int, mappings: Sequence[MappingRecord], *, more: bool) -> Self:
        return cls(ExportReply(transaction, cursor, len(mappings), int(more), MappingRecord.SIZE), tuple(mappings))

    def pack(self) -> bytes:
        return concat(self.reply, *self.mappings)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        reply = ExportReply.unpack(data)
        return cls(reply, MappingRecord.unpack_many(data, ExportReply.SIZE, reply.count, reply.record_size))


class SharedBatch(Struct, frozen=True):
    """Reply to SHARED; `reply.last_id` is a cursor, not an id."""

    reply: SharedReply
    records: tuple[SharedRecord, ...]

    @classmethod
    def of(cls, transaction: int, process: int, cursor: int, records: Sequence[SharedRecord], *, more: bool) -> Self:
        reply = SharedReply(transaction, process, cursor, len(records), int(more), SharedRecord.SIZE)
        return cls(reply, tuple(records))

    def pack(self) -> bytes:
        return concat(self.reply, *self.records)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        reply = SharedReply.unpack(data)
        return cls(reply, SharedRecord.unpack_many(data, SharedReply.SIZE, reply.count, reply.record_size))


class CopyBatch(Struct, frozen=True):
    """Request COPY_OUT or COPY_IN; the frame's descriptors are the segments that the records name by index."""

    transaction: int
    records: tuple[CopyRecord, ...]
    budget_ms: int

    def pack(self) -> bytes:
        head = CopyRequest(self.transaction, len(self.records), CopyRecord.SIZE, self.budget_ms)
        return concat(head, *self.records)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        head = CopyRequest.unpack(data)
        records = CopyRecord.unpack_many(data, CopyRequest.SIZE, head.count, head.record_size)
        return cls(head.transaction, records, head.budget_ms)


class MovedDevices(Struct, frozen=True):
    """Request MOVED."""

    transaction: int
    records: tuple[MovedRecord, ...]

    def pack(self) -> bytes:
        return concat(MovedRequest(self.transaction, len(self.records), MovedRecord.SIZE), *self.records)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        head = MovedRequest.unpack(data)
        return cls(head.transaction, MovedRecord.unpack_many(data, MovedRequest.SIZE, head.count, head.record_size))
