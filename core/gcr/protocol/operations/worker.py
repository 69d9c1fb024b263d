"""The operations of a device's worker: what it holds of processes, their copies in its arena, and its rings.

A `hold` names all that is held of one process; an `owner` names the process in messages. A process may have several
copies at once, and each is named by the transaction that makes it.
"""

from collections.abc import Sequence
from typing import Generic

from msgspec import Struct

from gcr.protocol.operations.operation import A, Count, Nothing, Operation, Size
from gcr.protocol.operations.operation import Ready as Ready

Row = tuple[int, int, int, int, int, int]
"""A HandleSpec as `spec_to_json` writes it, or the fields of a MappingRecord; there may be many."""


class OfProcess(Operation[A], Generic[A], frozen=True):
    hold: str


class CopyName(Struct, frozen=True):
    """One copy of a process: the bytes of one cut, in the arena, in a snapshot on the device or on their way."""

    hold: str
    transaction: int


class OfCopy(Operation[A], Generic[A], frozen=True):
    copy: CopyName


class Named(OfCopy[A], Generic[A], frozen=True):
    owner: str


class Bytes(Struct, frozen=True):
    bytes: int


class Moved(Struct, frozen=True):
    """Bytes that were moved, and the seconds that this took."""

    bytes: int
    seconds: float


# The device.


class Attached(Struct, frozen=True):
    attached: bool


class Attach(Operation[Attached], frozen=True):
    op = "attach"


class Detach(Operation[Nothing], frozen=True):
    op = "detach"


class Counted(Struct, frozen=True):
    """`by_pid`: bytes that the device counts for a process; `unexplained`: those of no process and no holding.

    spare: free bytes beyond what is left to drivers, which take memory without asking; below 0 where they lack some
    """

    by_pid: dict[int, int]
    unexplained: int
    spare: int = 0


class Memory(Operation[Counted], frozen=True):
    op = "memory"


class ArenaFacts(Struct, frozen=True, omit_defaults=True):
    """`cold_s`: seconds that the worker's start took. A speed is missing until it is measured."""

    bytes: int
    pinned_bytes: int
    cold_s: float
    link_out_bytes_per_s: float | None = None
    link_in_bytes_per_s: float | None = None


class ArenaState(Operation[ArenaFacts], frozen=True):
    op = "arena"


class Prepare(OfProcess[Nothing], frozen=True):
    op = "prepare"

    bytes: int


class PreparedBytes(Struct, frozen=True):
    """Bytes by hold."""

    bytes: dict[str, int]


class Prepared(Operation[PreparedBytes], frozen=True):
    op = "prepared"


# All of a process.


class Release(OfProcess[Nothing], frozen=True):
    op = "release"


class Forfeit(OfProcess[Nothing], frozen=True):
    op = "forfeit"


class Surrender(OfProcess[Nothing], frozen=True):
    op = "surrender"


# Its device memory.


class HeldIds(Struct, frozen=True):
    ids: tuple[int, ...]


class Held(OfProcess[HeldIds], frozen=True):
    op = "held"


class Adopt(OfProcess[Nothing], frozen=True):
    """`lent`: the process goes on holding the memory, and the device counts it for that process."""

    op = "adopt"
    takes = "a descriptor of each handle, in the order of `handles`"

    handles: tuple[Row, ...]
    lent: bool = False


class Forget(OfProcess[Nothing], frozen=True):
    op = "forget"

    ids: tuple[int, ...]


class Export(OfProcess[Nothing], frozen=True):
    op = "export"
    gives = "a descriptor of each handle, in the order of `ids`"

    ids: tuple[int, ...]


class Create(OfCopy[Bytes], frozen=True):
    """Physical memory for all handles of the copy, and `ballast` bytes. Gives the bytes that were resident."""

    op = "create"

    ballast: int


class Uncreate(OfProcess[Nothing], frozen=True):
    """Takes `Create` back: memory that was resident is so again."""

    op = "uncreate"


class HoldBallast(OfProcess[Nothing], frozen=True):
    op = "hold_ballast"

    bytes: int


class DropBallast(OfProcess[Nothing], frozen=True):
    op = "drop_ballast"


class Stay(OfCopy[Bytes], frozen=True):
    """The held memory becomes resident: the copy has every byte of it. Gives its bytes."""

    op = "stay"


class ResidentBytes(Struct, frozen=True):
    """By hold, evictable bytes of resident memory, and since when it is resident, on time.monotonic()."""

    resident: dict[str, tuple[int, float]]


class Resident(Operation[ResidentBytes], frozen=True):
    op = "resident"


class Evict(OfProcess[Bytes], frozen=True):
    """Resident memory is released, unless a restore has it. Gives its bytes."""

    op = "evict"


# A copy in the arena. A `deadline` is in seconds.


class Reserve(Named[Nothing], frozen=True):
    op = "reserve"

    bytes: int


class LayOut(Named[Nothing], frozen=True):
    op = "lay_out"

    handles: tuple[Row, ...]


class CompareWith(Named[Nothing], frozen=True):
    """`whole`: the copy gets every byte all the same, and an image is told which ones the baseline has."""

    op = "compare_with"
    takes = "a Baseline"

    whole: bool = False


class CopiedLive(Moved, frozen=True):
    """`bytes`: all that is held; `copied`: those of them that the parent image lacks."""

    copied: int


class CopyLive(Named[CopiedLive], frozen=True):
    """`beside`: the device may run kernels of the worker beside the program's."""

    op = "copy_live"

    deadline: float
    beside: bool


class Drained(Moved, frozen=True):
    """`copied`: bytes that the copy lacked; `snapshot`: bytes of these that are still on the device."""

    copied: int
    handles: int
    snapshot: int


class Drain(Named[Drained], frozen=True):
    op = "drain"

    deadline: float
    paranoid: bool
    last: bool = False  # no copy follows, so no hashes are made that would spare it bytes


class Descriptors(Struct, frozen=True):
    """The number of descriptors; those that do not fit into the answer are asked for by page."""

    descriptors: int


class Page(OfCopy[Nothing], frozen=True):
    """Asks for the descriptors from `offset` on, `limit` at most."""

    offset: Count
    limit: Size

    def of(self, fds: Sequence[int]) -> Sequence[int]:
        """Returns the page of these descriptors."""
        return fds[self.offset : self.offset + self.limit]


class ProcessFacts(Struct, frozen=True):
    """Facts of a process for its sealed table. `ordinals`: UUIDs by the process's own ordinals of its devices."""

    job: str
    pid: int
    start_time: int
    transaction: int
    ordinals: dict[int, str]
    mappings: tuple[Row, ...]


class Seal(OfCopy[Descriptors], frozen=True):
    """`partial`: for an image alone."""

    op = "seal"
    gives = "the sealed table, then the first segments"

    about: ProcessFacts
    partial: bool


class SealedSegments(Page, frozen=True):
    op = "sealed_segments"
    gives = "segments of a copy that is sealed or was set aside, in order"


class ForgetCopy(OfCopy[Nothing], frozen=True):
    op = "forget_copy"


class IsKnown(Struct, frozen=True):
    known: bool


class Knows(OfCopy[IsKnown], frozen=True):
    op = "knows"


class Reclaim(Named[Nothing], frozen=True):
    """A part of the descriptors, from `offset` on, of `total`. `left`: the device that the bytes left."""

    op = "reclaim"
    takes = "sealed tables, each with its segments"

    left: str
    offset: int
    total: int


class DriverAtWork(OfProcess[Nothing], frozen=True):
    """The driver brings a control state back. Until it is done, a refill that would end before lets its copies between.

    seconds: that it takes beside full queues, about; 0 once it is done
    """

    op = "driver_at_work"

    seconds: float


class Refill(OfCopy[Moved], frozen=True):
    op = "refill"

    deadline: float


class RefillAhead(OfCopy[Bytes], frozen=True):
    """Makes and refills the next piece of a suspended process's memory, which is resident then. Gives its bytes.

    They are 0 where there is no piece left, no room, or a restore under way; also where `begins` is not set, and what
    was made before is gone. most: bytes
    """

    op = "refill_ahead"

    most: int
    begins: bool
    deadline: float
