"""The numbers of the wire protocol: limits, frame types, flags, errors, reasons. Mirror of shim/include/gcr/codes.h."""

from enum import IntEnum, IntFlag
from typing import Self

MAGIC = 0x57524347
VERSION = 1
MAX_FRAME = 65536
MAX_DESCRIPTORS = 253
OCCUPIED_DEVICES = 128  # OccupiedRecords of a page
REPLY = 0x8000  # or-ed with the type of the request
ERROR = 0xFFFF


class FrameType(IntEnum):
    HELLO = 1
    RELEASED = 2
    LET_GO = 3
    DESCRIPTOR = 4
    STATUS = 16
    EXPORT = 17
    QUIESCE = 18
    HAND_OVER = 19
    IMPORT = 20
    MAP = 21
    RESUME = 22
    STAGE = 23
    FREEZE = 24
    THAW = 25
    UNSTAGE = 26
    DROP = 27
    MAPPINGS = 28
    DISCARD = 29
    CREATE = 30
    COPY_OUT = 31
    COPY_IN = 32
    SNAPSHOT = 33
    MOVED = 34
    BEGIN = 35
    REHOME = 36
    LEAVE = 37
    CLOSE = 38
    LOOK = 39
    ADMIT = 40
    SHARED = 41
    COMMAND = 64
    PROGRESS = 65
    CALL = 66
    NOTICE = 67


JSON_TYPES = frozenset({FrameType.COMMAND, FrameType.PROGRESS, FrameType.CALL, FrameType.NOTICE})
UNANSWERED_TYPES = frozenset({FrameType.PROGRESS, FrameType.NOTICE})


class Role(IntEnum):
    AGENT = 1
    SUPERVISOR = 2
    CLIENT = 3


class Vendor(IntEnum):
    VENDOR_NONE = 0
    NVIDIA = 1
    AMD = 2
    ASCEND = 3
    THIRD_PARTY = 4  # one vendor that gcr does not know, in a shim of its own


class AgentPhase(IntEnum):
    RUNNING = 0
    PREPARED = 1
    QUIESCED = 2
    HANDED_OVER = 3
    MAPPED = 4
    CLOSED = 5


class AgentFlag(IntFlag):
    STAGED = 1
    FROZEN = 2
    SIMULATED = 4
    UNEXPORTABLE = 8  # bytes leave by COPY_OUT alone
    MAPS_OVER = 16  # its runtime keeps released memory while the address is kept, but for a mapping over it
    RESERVES_AGAIN = 32  # and even under a mapping over it: addresses are given up for an instant
    FRESH = 64  # no call of the process has gone on to a driver yet, but for the one that starts it
    ENDING = 128  # in exit(), or its driver has shut down: not to be suspended any more
    RETURNED = 256  # it was away since it was suspended: an image has its bytes, and none is staged


class WelcomeFlag(IntFlag):
    WAIT = 1  # a FRESH agent keeps its gate closed until BEGIN


class HandleFlag(IntFlag):
    KEPT = 1  # by the process that gave it: an imported handle cannot be exported again
    UNEXPORTABLE = 2  # listed by EXPORT without a descriptor


class SharedFlag(IntFlag):
    FOREIGN = 1  # another process's memory that this one holds; without it: this one's, which another may hold


class WalkKind(IntEnum):
    """A thread owes a call where it has made all calls of a signature so far, and more of these are allowed."""

    NOT = 0  # any call
    LOCAL = 1  # allowed coupled calls, and local ones, each once its stream is idle or while the thread owes one
    OWED = 2  # the same, only while the thread owes a call
    THROUGH = 3  # any call, only while the thread owes one


SEVERAL_THREADS = 0xFFFFFFFF  # the maker of a signature that more than one has made


class ParkedFlag(IntFlag):
    CLEAR = 1  # nothing is unfinished on the stream of the call
    HELPER = 2  # a communication library's own thread


class SnapshotStep(IntEnum):
    """Phases of the snapshot that a runtime makes of its own process."""

    LOOK = 0
    LOCK = 1
    BACKUP = 2
    RESTORE = 3
    UNLOCK = 4


class SnapshotPhase(IntEnum):
    UNKNOWN = 0  # no runtime of the process has such calls
    RUNNING = 1
    LOCKED = 2
    SAVED = 3


class ErrorCode(IntEnum):
    BAD_FRAME = 1
    WRONG_VERSION = 2
    WRONG_PHASE = 3
    WRONG_TRANSACTION = 4
    STUCK = 5
    DRIVER = 6
    NO_DESCRIPTORS = 7
    UNKNOWN_HANDLE = 8
    INCOMPLETE = 9
    REFUSED = 10
    NO_MEMORY = 11
    NOT_PERMITTED = 12
    NO_ROOM = 13
    ADDRESS_TAKEN = 14  # by another thread, while it was given up for an instant
    DRIVER_GONE = 15  # in exit(), or its driver has shut down


class Reason(IntEnum):
    """Why bytes are not handed over. `why`: the words of a refusal, "" for bytes that the driver carries, slowly."""

    why: str

    def __new__(cls, number: int, why: str = "") -> Self:
        made = int.__new__(cls, number)
        made._value_, made.why = number, why
        return made

    POOL = 1
    ARRAY = 2
    CAPTURE = 3
    MANAGED = 4, "uses unified (managed) memory"
    MULTICAST = 5, "uses multicast memory (NVLS)"
    IPC_EXPORT = 6, "shares device memory with another process (CUDA IPC export)"
    IPC_IMPORT = 7, "shares device memory with another process (CUDA IPC import)"
    SHAREABLE_EXPORT = 8, "exported device memory to another process"
    SHAREABLE_IMPORT = 9, "imported device memory of another process"
    DMA_BUF = 10, "exported device memory as a dma-buf, which a network card may write to"
    HOST_NUMA = 11, "holds physical memory on the host (HOST_NUMA)"
    FABRIC = 12, "shares device memory over the fabric"
    EXTERNAL = 13, "imported memory or semaphores of another API"
    SPARSE = 14, "maps its memory into sparse arrays"
    UNEXPORTABLE = 15
    GREEN_CONTEXT = 16, "uses green contexts"
    BEFORE_SHIM = 17
    IPC_EVENT = 18, "has used interprocess events"
    COUNT = 19, "uses something that only a newer gcr has a name for"  # their number, and what a newer shim counts


class Refuse(IntEnum):
    """The checkpoints that a Reason rules out. Any other value, which is a newer shim's, means all of them."""

    NONE = 0
    ALWAYS = 1
    WHOLE = 2  # a checkpoint after which the process may end, and come back from an image


CARRIED_REASONS = frozenset(reason for reason in Reason if not reason.why)
WHOLE_REASONS = frozenset({Reason.IPC_EVENT})
"""Such a process comes back in place. Whether it would after it has ended is not known."""
REFUSED_REASONS = frozenset(Reason) - CARRIED_REASONS - {Reason.COUNT}
"""But for WHOLE_REASONS the driver would take such a process and never give it back (docs/design.md)."""
