"""The gcr wire protocol in Python: the mirror of shim/include/gcr/wire.h, where every rule is explained.

What agents alone send and get is in agentwire.py.

One frame is one SOCK_SEQPACKET packet of at most MAX_FRAME bytes; descriptors travel with the frame that names them.
Numbers are little-endian. This is a request to resume transaction 7 (0x07), the 258th (0x0102) of its connection:

    magic       | version | type   | request                 | length      | descriptors | TransactionRecord
    47 43 52 57 | 01 00   | 16 00  | 02 01 00 00 00 00 00 00 | 08 00 00 00 | 00 00 00 00 | 07 00 00 00 00 00 00 00

Its reply has the same request and type 0x8016; an error has type 0xffff and an ErrorRecord.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from msgspec import Struct
from msgspec.structs import replace

from gcr.protocol.codes import CARRIED_REASONS as CARRIED_REASONS
from gcr.protocol.codes import ERROR as ERROR
from gcr.protocol.codes import JSON_TYPES as JSON_TYPES
from gcr.protocol.codes import MAGIC as MAGIC
from gcr.protocol.codes import MAX_DESCRIPTORS as MAX_DESCRIPTORS
from gcr.protocol.codes import MAX_FRAME as MAX_FRAME
from gcr.protocol.codes import OCCUPIED_DEVICES as OCCUPIED_DEVICES
from gcr.protocol.codes import REFUSED_REASONS as REFUSED_REASONS
from gcr.protocol.codes import REPLY as REPLY
from gcr.protocol.codes import SEVERAL_THREADS as SEVERAL_THREADS
from gcr.protocol.codes import UNANSWERED_TYPES as UNANSWERED_TYPES
from gcr.protocol.codes import VERSION as VERSION
from gcr.protocol.codes import WHOLE_REASONS as WHOLE_REASONS
from gcr.protocol.codes import AgentFlag as AgentFlag
from gcr.protocol.codes import AgentPhase as AgentPhase
from gcr.protocol.codes import ErrorCode as ErrorCode
from gcr.protocol.codes import FrameType as FrameType
from gcr.protocol.codes import HandleFlag as HandleFlag
from gcr.protocol.codes import ParkedFlag as ParkedFlag
from gcr.protocol.codes import Reason as Reason
from gcr.protocol.codes import Refuse as Refuse
from gcr.protocol.codes import Role as Role
from gcr.protocol.codes import SharedFlag as SharedFlag
from gcr.protocol.codes import SnapshotPhase as SnapshotPhase
from gcr.protocol.codes import SnapshotStep as SnapshotStep
from gcr.protocol.codes import Vendor as Vendor
from gcr.protocol.codes import WalkKind as WalkKind
from gcr.protocol.codes import WelcomeFlag as WelcomeFlag
from gcr.protocol.record import I32, U16, U32, U64, BadFrame, Record, concat


class FrameHeader(Record, frozen=True):
    magic: U32
    version: U16
    type: U16
    request: U64
    length: U32
    descriptors: U32


class HelloRecord(Record, frozen=True):
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


class WelcomeRecord(Record, frozen=True):
    version: U16
    flags: U16
    daemon_pid: U32
    daemon_epoch: U64
    daemon_version: Annotated[str, "24s"]


class MappingRecord(Record, frozen=True):
    id: U64
    address: U64
    offset: U64
    size: U64
    read_devices: U32
    write_devices: U32


class StuckRecord(Record, frozen=True):
    stream: U64
    context: U64
    device: U32
    in_flight: U32


class ErrorRecord(Record, frozen=True):
    code: U32
    vendor_error: I32 = 0
    details: U32 = 0
    reserved: ClassVar[U32] = 0
    message: Annotated[str, "112s"] = ""


class StuckError(Struct, frozen=True):
    """Payload of an ERROR frame; `streams` only for ErrorCode.STUCK."""

    error: ErrorRecord
    streams: tuple[StuckRecord, ...] = ()

    def pack(self) -> bytes:
        return concat(replace(self.error, details=len(self.streams)), *self.streams)

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
