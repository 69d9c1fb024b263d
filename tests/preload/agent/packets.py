"""Packets of the wire protocol, with `struct` from the text of codes.h and wire.h alone: kinds, records, frames."""

import array
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

HEADER = struct.Struct("<IHHQII")
HELLO = struct.Struct("<IHHIIIIQQ64s40s24s")
WELCOME = struct.Struct("<HHIQ24s")
EXPORT_REQUEST = struct.Struct("<QQII")
EXPORT_REPLY = struct.Struct("<QQIIII")
HANDLE = struct.Struct("<QQIIIIBBHI")  # the last: flags
KEPT, UNEXPORTABLE = 1, 2
COPY = struct.Struct("<QIIII")
COPY_RECORD = struct.Struct("<QQQQII")
MAPPING = struct.Struct("<QQQQII")
COUNT = struct.Struct("<QQQ")
ID_LIST = struct.Struct("<QII")
SHARED_REPLY = struct.Struct("<QQQIIII")
SHARED = struct.Struct("<QQQQIIII")
FOREIGN = 1
QUIESCE = struct.Struct("<QII")
CLOSE = struct.Struct("<QII")
ADMIT = struct.Struct("<QIIII")
GATE = struct.Struct("<QQQIIIIII")
PARKED = struct.Struct("<QIIII")
ALLOWED = struct.Struct("<QII")
MADE = struct.Struct("<QII")  # signature, launched, thread
SEVERAL_THREADS = 0xFFFFFFFF
INCOMPLETE_LAUNCH = struct.Struct("<QQII48s")
STUCK = struct.Struct("<QQII")
STAGE = struct.Struct("<QII")
SNAPSHOT = struct.Struct("<QII")
STATUS = struct.Struct("<IIQQQQQIIIIIIQ")
DEVICE = struct.Struct("<16sIIQ")
UNCOVERED = struct.Struct("<IIQQ")
ERROR = struct.Struct("<IiII112s")
OCCUPIED = struct.Struct("<16sII")
OCCUPIED_DEVICES = 128

MAGIC, VERSION = 0x57524347, 1
REPLY, FAILED = 0x8000, 0xFFFF
KINDS = {
    "hello": 1, "released": 2, "let_go": 3, "descriptor": 4, "status": 16, "export": 17, "quiesce": 18,
    "hand_over": 19, "import": 20, "map": 21, "resume": 22, "stage": 23, "freeze": 24, "thaw": 25, "unstage": 26,
    "drop": 27, "mappings": 28,
    "discard": 29, "create": 30, "copy_out": 31, "copy_in": 32, "snapshot": 33, "moved": 34, "begin": 35,
    "rehome": 36, "leave": 37, "close": 38, "look": 39, "admit": 40, "shared": 41,
}  # fmt: skip
RUNNING, PREPARED, QUIESCED, HANDED_OVER, MAPPED, CLOSED = range(6)
CLEAR, HELPER = 1, 2
STAGED, FROZEN, SIMULATED, COPIED_ONLY, RETURNED = 1, 2, 4, 8, 256
FRESH, WAIT = 64, 1  # of an agent, of a welcome
BAD_FRAME, _, WRONG_PHASE, WRONG_TRANSACTION, STUCK_CODE, DRIVER, NO_DESCRIPTORS, UNKNOWN, INCOMPLETE = range(1, 10)


class Refused(Exception):
    """The agent answered kError."""

    def __init__(self, code: int, vendor_error: int, message: str, details: bytes) -> None:
        super().__init__(f"{code} ({vendor_error}): {message}")
        self.code = code
        self.vendor_error = vendor_error
        self.details = details


@dataclass(frozen=True, slots=True)
class Handle:
    id: int
    size: int
    device: int
    mappings: int
    type: int
    asked_types: int
    kept: bool
    unexportable: bool = False


@dataclass(frozen=True, slots=True)
class Shared:
    """A handle and another process: its owner (`foreign`), or one that was lent it."""

    id: int
    size: int
    process: int
    there: int
    device: int
    devices: int
    pid: int
    foreign: bool


@dataclass(frozen=True, slots=True)
class Parked:
    signature: int
    thread: int
    launched: int
    flags: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A coupled one that is not complete."""

    signature: int
    stream: int
    launched: int
    kernel: str


@dataclass(frozen=True, slots=True)
class Gate:
    admitted: int
    unchanged_us: int
    busy: int
    in_flight: int
    captures: int
    held: int
    parked: list[Parked]
    incomplete: list[Launch]
    made: list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Hello:
    role: int
    vendor: int
    phase: int
    flags: int
    pid: int
    transaction: int
    generation: int
    job: bytes
    token: bytes


@dataclass(frozen=True, slots=True)
class Status:
    phase: int
    flags: int
    transaction: int
    generation: int
    covered_bytes: int
    allocations: int
    pinned_host_bytes: int
    handles: int
    contexts: int
    captures: int
    in_flight: int
    gated_calls: int
    devices: Sequence[tuple[bytes, int, int, int]]
    uncovered: dict[int, tuple[bool, int, int]]


def frame(kind: int, request: int, payload: bytes = b"", descriptors: int = 0) -> bytes:
    return HEADER.pack(MAGIC, VERSION, kind, request, len(payload), descriptors) + payload


def receive(link: socket.socket) -> tuple[int, int, bytes, list[int]]:
    """kind, request, payload, descriptors. An end of the connection raises EOFError."""
    fds = array.array("i")
    data, ancillary, _, _ = link.recvmsg(65536 + 64, socket.CMSG_SPACE(253 * 4), socket.MSG_CMSG_CLOEXEC)
    for level, what, body in ancillary:
        if level == socket.SOL_SOCKET and what == socket.SCM_RIGHTS:
            fds.frombytes(body[: len(body) - len(body) % 4])
    if not data:
        raise EOFError
    magic, version, kind, request, length, count = HEADER.unpack_from(data)
    assert (magic, version) == (MAGIC, VERSION)
    assert length == len(data) - HEADER.size
    assert count == len(fds)
    return kind, request, data[HEADER.size :], list(fds)


def handles_in(payload: bytes) -> list[Handle]:
    rows = HANDLE.iter_unpack(payload[EXPORT_REPLY.size :])
    return [Handle(*row[:6], bool(row[9] & KEPT), bool(row[9] & UNEXPORTABLE)) for row in rows]
