"""The calls of one device that VmmDrain needs of a vendor's driver.

The device's worker makes all of these calls, from several threads. Each thread calls `enter` first, since the current
device is a setting of the thread. Sizes are bytes, addresses are integers, handles are the driver's own objects. Each
call may raise DriverError.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from gcr.drain import DeviceMemory, HandleSpec

Physical = Any
"""The driver's handle of a physical allocation; a reference to it and the handle are the same thing."""

Event = Any


class DeviceFull(Exception):
    """`create` found no room on the device; becomes NoRoom once the attempt is undone."""


class NoHashKernel(Exception):
    """This device cannot run the kernel of gcr.hashing; the text says why. Its memory is hashed on the host."""


class CopyStream(Protocol):
    """Copies in their order, independent of every other stream of the process."""

    def device_to_host(self, host: int, device: int, size: int) -> None: ...

    def host_to_device(self, device: int, host: int, size: int) -> None: ...

    def device_to_device(self, target: int, source: int, size: int) -> None: ...

    def mark(self, *, timed: bool) -> Event:
        """An event that passes when everything before it has. Only timed ones have a distance."""
        ...

    def passed(self, event: Event) -> bool: ...

    def seconds(self, first: Event, last: Event) -> float:
        """Returns the seconds between two timed events that have passed, on the device's clock."""
        ...

    def forget(self, event: Event) -> None: ...

    def idle(self) -> bool:
        """Returns whether no work is queued; a stream that failed is idle."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class WaitsForEvents(CopyStream, Protocol):
    """A CopyStream that records an event again and again. Over other streams each piece of a refill is a transfer."""

    def mark_again(self, event: Event) -> None:
        """Records an event of this stream anew, which is not timed: it passes when everything before it has."""
        ...

    def wait_for(self, event: Event) -> None:
        """Returns a few µs after the event has passed. Gives up the GIL meanwhile."""
        ...


class VmmDriver(Protocol):
    granularity: int
    """Bytes that every physical allocation is a multiple of."""

    unmaps_runs: bool
    """One `unmap` may take several mappings that lie side by side; else each is unmapped alone."""

    def enter(self) -> None: ...

    def check_descriptor(self, fd: int) -> None:
        """Before the driver sees it: a stranger's may be a pipe that blocks. Raises NotDeviceMemory."""
        ...

    def import_(self, fd: int) -> Physical:
        """The descriptor stays the caller's. Raises NotDeviceMemory for what the driver does not know."""
        ...

    def export(self, handle: Physical) -> int:
        """A new descriptor, closed on exec."""
        ...

    def create(self, size: int, spec: HandleSpec | None) -> Physical:
        """Exportable and as the program asked, or plain without a spec. Raises DeviceFull."""
        ...

    def release(self, handle: Physical) -> None: ...

    def reserve(self, size: int) -> int: ...

    def unreserve(self, address: int, size: int) -> None: ...

    def map(self, address: int, size: int, handle: Physical) -> None: ...

    def allow(self, address: int, size: int) -> None:
        """Reading and writing by this device; nothing to do where mapping gives it."""
        ...

    def unmap(self, address: int, size: int) -> None: ...

    def stream(self) -> CopyStream: ...

    def pin(self, address: int, size: int) -> None: ...

    def unpin(self, address: int) -> None: ...

    def free_bytes(self) -> int: ...

    def memory(self) -> DeviceMemory: ...

    def close(self) -> None:
        """Give the device back; nothing is called afterwards."""
        ...


class HashKernel(Protocol):
    """`gcr_hash_chunks` of gcr/hashing/chunk_hash.h, loaded on the device, and a stream of its own for it."""

    def allocate(self, size: int) -> int:
        """Device memory, aligned to 256 bytes. Raises DeviceFull."""
        ...

    def free(self, address: int) -> None: ...

    def upload(self, address: int, data: bytes) -> None:
        """Done when it returns."""
        ...

    def launch(self, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        """Launches in one dimension. The arguments are data, size, bytes of a chunk (32 bits), key, digests."""
        ...

    def idle(self) -> bool:
        """Returns whether the launched work is done. Raises DriverError when it failed."""
        ...

    def download(self, address: int, size: int) -> bytes: ...

    def close(self) -> None: ...


@runtime_checkable
class RunsHashKernel(Protocol):
    """A VmmDriver with a hash kernel for its device. Without one the memory is copied to the host and hashed there."""

    def hash_kernel(self) -> HashKernel:
        """Called at the first hash, once. Raises NoHashKernel."""
        ...
