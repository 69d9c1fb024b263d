"""Data drain: how one worker owns handed-over device memory and moves its bytes.

A drain lives inside the worker of one device, holds the vendor's context there and is called by that worker only.
`adopt` and `create` put many physical handles side by side in one reserved range, so that one copy moves them all.
Sizes are bytes, addresses are integers, times are seconds. Every method may raise `DriverError`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from gcr.hashing import CHUNK_BYTES, ChunkHashes, HashKey


class HandleSpec(Struct, frozen=True):
    """A physical allocation as its program asked for it: what is needed to make an equal one."""

    id: int
    size: int
    type: int = 1
    compression: int = 0
    rdma_capable: int = 0
    usage: int = 0


def spec_to_json(spec: HandleSpec) -> tuple[int, int, int, int, int, int]:
    return spec.id, spec.size, spec.type, spec.compression, spec.rdma_capable, spec.usage


def spec_from_json(item: Sequence[int]) -> HandleSpec:
    return HandleSpec(*item)


class Handed(Struct, frozen=True):
    """A physical allocation that arrived, or leaves, as a file descriptor."""

    spec: HandleSpec
    fd: int


class DeviceRange(Struct, frozen=True):
    """Handles mapped side by side in this worker: `address` is the first byte, `offsets` where each id begins."""

    address: int
    size: int
    offsets: Mapping[int, int]


class Span(Struct, frozen=True):
    """One contiguous copy between device memory and pinned host memory."""

    device: int
    host: int
    size: int


class Move(Struct, frozen=True):
    """One contiguous copy within the device."""

    target: int
    source: int
    size: int


class DeviceMemory(Struct, frozen=True):
    """The device's own count, never ours. `by_pid` has only the processes the device can name."""

    used: int
    total: int
    by_pid: Mapping[int, int]


class Transfer(Protocol):
    """A copy in flight."""

    def done(self) -> int:
        """Bytes moved so far, for progress; never decreases."""
        ...

    def wait(self, timeout: float) -> float:
        """Wait for the end; seconds the copy took on the device's clock. Raises DeadlinePassed, DriverError."""
        ...


class Lane(Protocol):
    """Copies to the device from a few slots of pinned host memory. One thread makes all its calls.

    A refill has tens of thousands of copies, and 40 µs for each: a call must cost a few µs.
    """

    def write(self, slot: int, device: int, host: int, size: int) -> None:
        """Starts a copy of `size` bytes from a slot that has none in flight. `slot`: its number, from 0."""
        ...

    def land(self, slot: int) -> None:
        """Waits for the copy from a slot, if there is one. Gives up the GIL meanwhile. Raises DriverError."""
        ...

    def close(self) -> None:
        """Gives the lane back; waits for its copies first. Raises what leaves one in flight: its slots may be read."""
        ...


class DataDrain(Protocol):
    def adopt(self, handles: Sequence[Handed]) -> DeviceRange:
        """Imports and maps side by side. Takes the descriptors: each is closed, on failure too.

        All or nothing: on failure nothing stays imported. Raises NotDeviceMemory for a descriptor of another kind.
        """
        ...

    def create(self, handles: Sequence[HandleSpec]) -> DeviceRange:
        """Make new exportable physical memory, mapped side by side. Raises NoRoom before anything is kept."""
        ...

    def forget(self, where: DeviceRange, ids: Sequence[int]) -> None:
        """Unmap and release some handles of a range: the program freed them meanwhile."""
        ...

    def export(self, where: DeviceRange, ids: Sequence[int]) -> Sequence[Handed]:
        """Descriptors for handles of a range that `create` made. The caller owns and closes them.

        What was adopted may refuse to be exported again (r580 does): DriverError.
        """
        ...

    def release(self, where: DeviceRange) -> None:
        """Unmap and release every handle that is left and the range itself. Idempotent."""
        ...

    def read(self, spans: Sequence[Span]) -> Transfer:
        """Start copying device → host."""
        ...

    def write(self, spans: Sequence[Span]) -> Transfer:
        """Start copying host → device. Several threads may start and wait for copies at once."""
        ...

    def move(self, moves: Sequence[Move]) -> Transfer:
        """Starts copying within the device. A drain may do without it: see CopiesWithin."""
        ...

    def hash(
        self, ranges: Sequence[DeviceRange], key: HashKey, chunk_bytes: int = CHUNK_BYTES, timeout: float = 120.0
    ) -> ChunkHashes:
        """Returns the hashes of the chunks of every handle that is left in these ranges, as gcr.hashing defines them.

        Equal bytes have equal hashes, in any process and at any place in a range.
        A program stands still for it, and may have hundreds of ranges: what a call costs should not grow with them.
        A chunk that is written meanwhile gets the hash of some mixture of what it held.
        Raises ValueError for a size of chunks that there is not, DeadlinePassed after `timeout` seconds.
        """
        ...

    def ballast(self, size: int) -> "Ballast":
        """Occupies `size` bytes, so that no other program takes the room that the driver will need. Raises NoRoom."""
        ...

    def pin(self, address: int, size: int) -> None:
        """Register host memory for DMA by this device."""
        ...

    def unpin(self, address: int) -> None: ...

    def memory(self) -> DeviceMemory:
        """Returns the memory in use by the device's own count, and the processes that use it."""
        ...

    def close(self) -> None:
        """Give back everything, the context last."""
        ...


@runtime_checkable
class CopiesWithin(Protocol):
    """A DataDrain that copies within its device. Without this a program stands still for the whole copy of its data."""

    def move(self, moves: Sequence[Move]) -> Transfer:
        """Starts copying within the device."""
        ...


@runtime_checkable
class Paces(Protocol):
    """A DataDrain that can copy piece by piece, so that others' copies find the queue short.

    Without this a driver may need twice as long to restore a process beside the writes, and each small copy of a
    program waits for the reads that are queued beside it.
    """

    def read_paced(self, spans: Sequence[Span], paced: Callable[[], bool]) -> Transfer:
        """Starts copying device → host, as `write_paced`."""
        ...

    def write_paced(self, spans: Sequence[Span], paced: Callable[[], bool]) -> Transfer:
        """Starts copying host → device. While `paced` says so, one short piece is in flight at a time.

        The transfer need go on only while some thread is in its `wait`, or asks it for what is `done`.
        """
        ...


@runtime_checkable
class HasLanes(Protocol):
    """A DataDrain that can copy small pieces at little cost. Without this each piece is a transfer."""

    def lane(self, slots: int) -> Lane | None:
        """Returns a lane for the calling thread, and for so many slots; None where the driver lacks what it needs."""
        ...


@runtime_checkable
class PreparesHash(Protocol):
    """A DataDrain whose first `hash` takes longer than the later ones, and that can do that work before."""

    def make_ready_to_hash(self, timeout: float = 120.0) -> bool:
        """Does the work of the first `hash` now: that call comes while a program stands still.

        Returns whether the device hashes its memory by itself; otherwise `hash` copies all of it to the host.
        Raises DeadlinePassed after `timeout` seconds.
        """
        ...


class Ballast(Protocol):
    def release(self) -> None:
        """Give the room back. Idempotent."""
        ...
