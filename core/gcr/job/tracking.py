"""Allocations of one process, kept from what its shim reports. Pure bookkeeping: no vendor call, no I/O.

The shim is the truth; a report that contradicts what is known is an error here and not something to repair. Ids are
never reused in a process's life: one that comes back after it was released means that we would restore wrong bytes.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from msgspec import Struct

from gcr.drain import HandleSpec
from gcr.errors import RolledBack
from gcr.protocol.agentwire import ExportBatch, HandleRecord, IdList, MappingBatch, StatusReply
from gcr.protocol.wire import MappingRecord, Reason, Refuse
from gcr.units import dashed

AllocationRecord = StatusReply | ExportBatch | MappingBatch | IdList
"""What the shim says: devices and uncovered bytes · handles · where they are mapped · ids the program freed."""


class Contradiction(RolledBack):
    """The shim's reports do not fit together: report it.

    An id is reused, a mapping outside its handle, or a device unknown.
    """

    code = "contradiction"


class Allocation(Struct, frozen=True):
    """One physical allocation, its device (UUID), and every place it is mapped at in the process."""

    spec: HandleSpec
    device: str
    mappings: tuple[MappingRecord, ...]


class AllocationTable(Struct, frozen=True):
    """All allocations at one time. `ordinals`: device UUID by the process's own ordinal, as access masks count."""

    generation: int
    ordinals: Mapping[int, str]
    allocations: Mapping[int, Allocation]

    @property
    def bytes(self) -> int:
        return sum(each.spec.size for each in self.allocations.values())

    def of_device(self, device: str) -> Sequence[Allocation]:
        """Returns them in the order of their ids, which is that of their making."""
        return [self.allocations[id] for id in sorted(self.allocations) if self.allocations[id].device == device]

    def mappings(self) -> Sequence[MappingRecord]:
        return [place for each in self.allocations.values() for place in each.mappings]


NOTHING = AllocationTable(0, MappingProxyType({}), MappingProxyType({}))


class AllocationTracker(Protocol):
    """One per process and transaction. Thread-safety is the caller's."""

    def apply(self, record: AllocationRecord) -> None:
        """Take a report in. Raises Contradiction and then is unchanged."""
        ...

    def table(self) -> AllocationTable: ...

    def ordinals(self) -> Mapping[int, str]:
        """Device UUIDs as far as they were reported: a handle on another device is a Contradiction."""
        ...

    def bytes_by_device(self) -> Mapping[str, int]:
        """Returns the bytes by device (UUID), as `table` would add them up, without making a table."""
        ...

    def forget_mappings(self) -> None:
        """Forgets where the handles are mapped, to be told anew: a program that runs maps memory elsewhere."""
        ...

    def unmapped(self) -> Sequence[int]:
        """Returns the ids of handles without a mapping, ascending, as far as mappings were reported."""
        ...

    def uncovered(self) -> Mapping[Reason, int]:
        """Bytes the driver would have to carry, and why."""
        ...

    def refusals(self) -> Sequence[Reason]:
        """Why the driver would take this process and never give it back; empty when it would."""
        ...

    def refusals_of_whole(self) -> Sequence[Reason]:
        """Returns what else speaks against a checkpoint after which the process may end."""
        ...


class ReportedAllocations:
    """The AllocationTracker. `name_device` makes a device's UUID, as its backend writes it, of the shim's 16 bytes."""

    def __init__(self, name_device: Callable[[bytes], str] = dashed) -> None:
        self._name_device = name_device
        self._status: StatusReply | None = None
        self._ordinals: dict[int, str] = {}
        self._handles: dict[int, HandleRecord] = {}
        self._mappings: dict[int, dict[int, MappingRecord]] = {}  # by id, then by address
        self._released: set[int] = set()
        self._bytes: dict[str, int] = {}

    def apply(self, record: AllocationRecord) -> None:
        match record:
            case StatusReply():
                self._apply_status(record)
            case ExportBatch():
                self._apply_handles(record.handles)
            case MappingBatch():
                self._apply_mappings(record.mappings)
            case IdList():
                self._apply_released(record.ids)

    def table(self) -> AllocationTable:
        allocations = {id: self._allocation(handle) for id, handle in self._handles.items()}
        generation = self._status.status.generation if self._status else 0
        return AllocationTable(generation, MappingProxyType(dict(self._ordinals)), MappingProxyType(allocations))

    def ordinals(self) -> Mapping[int, str]:
        return MappingProxyType(self._ordinals)

    def bytes_by_device(self) -> Mapping[str, int]:
        return dict(self._bytes)

    def forget_mappings(self) -> None:
        self._mappings.clear()

    def unmapped(self) -> Sequence[int]:
        return sorted(self._handles.keys() - self._mappings.keys())

    def uncovered(self) -> Mapping[Reason, int]:
        # Reasons only a newer shim knows come together under Reason.COUNT; its word on refusing them stands.
        found: Counter[Reason] = Counter()
        for each in self._status.uncovered if self._status else ():
            found[_reason(each.reason)] += each.bytes
        return dict(found)

    def refusals(self) -> Sequence[Reason]:
        listed = self._status.uncovered if self._status else ()
        return [_reason(each.reason) for each in listed if each.refuse not in (Refuse.NONE, Refuse.WHOLE)]

    def refusals_of_whole(self) -> Sequence[Reason]:
        listed = self._status.uncovered if self._status else ()
        return [_reason(each.reason) for each in listed if each.refuse == Refuse.WHOLE]

    def _apply_status(self, reply: StatusReply) -> None:
        fresh = {device.ordinal: self._name_device(device.uuid) for device in reply.devices}
        for ordinal, device in fresh.items():
            if self._ordinals.get(ordinal, device) != device:
                raise Contradiction(f"device {ordinal} was {self._ordinals[ordinal]} and is {device}")
        self._ordinals.update(fresh)
        self._status = reply

    def _apply_handles(self, handles: Sequence[HandleRecord]) -> None:
        for handle in handles:
            self._check_handle(handle)
        if len({handle.id for handle in handles}) != len(handles):
            raise Contradiction("a handle is listed twice in one batch")
        for handle in handles:
            if handle.id not in self._handles:
                self._count(handle, handle.size)
            self._handles[handle.id] = handle

    def _check_handle(self, handle: HandleRecord) -> None:
        known = self._handles.get(handle.id)
        if handle.id in self._released:
            raise Contradiction(f"handle {handle.id} was released and is back")
        if known is not None and _physical(known) != _physical(handle):
            raise Contradiction(f"handle {handle.id} is another one now")
        if handle.size <= 0:
            raise Contradiction(f"handle {handle.id} has no bytes")
        if handle.device not in self._ordinals:
            raise Contradiction(f"handle {handle.id} is on device {handle.device}, which has no UUID")

    def _count(self, handle: HandleRecord, change: int) -> None:
        device = self._ordinals[handle.device]
        self._bytes[device] = self._bytes.get(device, 0) + change

    def _apply_mappings(self, mappings: Sequence[MappingRecord]) -> None:
        live = [mapping for mapping in mappings if mapping.id not in self._released]  # freed while it was listed
        for mapping in live:
            self._check_mapping(mapping)
        for mapping in live:
            self._mappings.setdefault(mapping.id, {})[mapping.address] = mapping

    def _check_mapping(self, mapping: MappingRecord) -> None:
        handle = self._handles.get(mapping.id)
        if handle is None:
            raise Contradiction(f"mapping of handle {mapping.id}, which was never reported")
        if mapping.size <= 0 or mapping.offset + mapping.size > handle.size:
            raise Contradiction(f"mapping at {mapping.address:#x} goes beyond handle {mapping.id}")

    def _apply_released(self, ids: Sequence[int]) -> None:
        self._released.update(ids)
        for id in ids:
            self._mappings.pop(id, None)
            if gone := self._handles.pop(id, None):
                self._count(gone, -gone.size)

    def _allocation(self, handle: HandleRecord) -> Allocation:
        # How many mappings a handle's record announces is not held against them: the program may have mapped it again.
        places = self._mappings.get(handle.id, {})
        return Allocation(spec_of(handle), self._ordinals[handle.device], tuple(places[at] for at in sorted(places)))


def spec_of(record: HandleRecord) -> HandleSpec:
    return HandleSpec(record.id, record.size, record.type, record.compression, record.rdma_capable, record.usage)


def specs_of(records: Sequence[HandleRecord]) -> list[HandleSpec]:
    return [spec_of(record) for record in records]


def ids_of(records: Sequence[HandleRecord]) -> list[int]:
    return [record.id for record in records]


def _physical(handle: HandleRecord) -> tuple[int, ...]:
    """The facts that never change in the life of a handle; its mappings may."""
    return (handle.size, handle.device, handle.type, handle.compression, handle.rdma_capable, handle.usage)


def _reason(number: int) -> Reason:
    return Reason(number) if number in Reason._value2member_map_ else Reason.COUNT
