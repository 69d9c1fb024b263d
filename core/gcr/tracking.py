"""Allocations of one process, kept from what its shim reports. Pure bookkeeping: no vendor call, no I/O.

The shim is the truth; a report that contradicts what is known is an error here and not something to repair. Ids are
never reused in a process's life: one that comes back after it was released means that we would restore wrong bytes.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from gcr.drain import HandleSpec
from gcr.errors import RolledBack
from gcr.wire import (
    ExportBatch,
    HandleRecord,
    IdList,
    MappingBatch,
    MappingRecord,
    Reason,
    StatusReply,
)

AllocationRecord = StatusReply | ExportBatch | MappingBatch | IdList
"""What the shim says: devices and uncovered bytes · handles · where they are mapped · ids the program freed."""


class Contradiction(RolledBack):
    """The shim's reports do not fit together: an id reused, a mapping outside its handle, an unknown device."""

    code = "contradiction"


@dataclass(frozen=True, slots=True)
class Allocation:
    """One physical allocation, its device (UUID), and every place it is mapped at in the process."""

    spec: HandleSpec
    device: str
    mappings: tuple[MappingRecord, ...]


@dataclass(frozen=True, slots=True)
class AllocationTable:
    """All allocations at one time. `ordinals`: device UUID by the process's own ordinal, as access masks count."""

    generation: int
    ordinals: Mapping[int, str]
    allocations: Mapping[int, Allocation]

    @property
    def bytes(self) -> int:
        return sum(each.spec.size for each in self.allocations.values())

    def of_device(self, device: str) -> Sequence[Allocation]:
        """In the order of their ids, which is that of their making."""
        return [self.allocations[id] for id in sorted(self.allocations) if self.allocations[id].device == device]


class AllocationTracker(Protocol):
    """One per process. Thread-safety is the caller's."""

    def apply(self, record: AllocationRecord) -> None:
        """Take a report in. Raises Contradiction and then is unchanged."""
        ...

    def table(self) -> AllocationTable: ...

    def uncovered(self) -> Mapping[Reason, int]:
        """Bytes the driver would have to carry, and why."""
        ...

    def refusals(self) -> Sequence[Reason]:
        """Why the driver would take this process and never give it back; empty when it would."""
        ...


class ReportedAllocations:
    """The AllocationTracker. `name_device` makes a device's UUID, as its backend writes it, of the shim's 16 bytes."""

    def __init__(self, name_device: Callable[[bytes], str] = lambda raw: str(uuid.UUID(bytes=raw))) -> None:
        self._name_device = name_device
        self._status: StatusReply | None = None
        self._ordinals: dict[int, str] = {}
        self._handles: dict[int, HandleRecord] = {}
        self._mappings: dict[tuple[int, int], MappingRecord] = {}  # by id and address
        self._released: set[int] = set()

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
        """Raises Contradiction while a handle's device or some of its mappings have not been reported."""
        places: dict[int, list[MappingRecord]] = {id: [] for id in self._handles}
        for (id, _), mapping in sorted(self._mappings.items()):
            places[id].append(mapping)
        allocations = {id: self._allocation(handle, places[id]) for id, handle in self._handles.items()}
        generation = self._status.status.generation if self._status else 0
        return AllocationTable(generation, MappingProxyType(dict(self._ordinals)), MappingProxyType(allocations))

    def uncovered(self) -> Mapping[Reason, int]:
        # Reasons only a newer shim knows come together under Reason.COUNT; its word on refusing them stands.
        found: Counter[Reason] = Counter()
        for each in self._status.uncovered if self._status else ():
            found[_reason(each.reason)] += each.bytes
        return dict(found)

    def refusals(self) -> Sequence[Reason]:
        listed = self._status.uncovered if self._status else ()
        return [_reason(each.reason) for each in listed if each.refuse]

    def _apply_status(self, reply: StatusReply) -> None:
        fresh = {device.ordinal: self._name_device(device.uuid) for device in reply.devices}
        for ordinal, device in fresh.items():
            _expect(
                self._ordinals.get(ordinal, device) == device, f"device {ordinal} was {self._ordinals.get(ordinal)}"
            )
        self._ordinals.update(fresh)
        self._status = reply

    def _apply_handles(self, handles: Sequence[HandleRecord]) -> None:
        for handle in handles:
            _expect(handle.id not in self._released, f"handle {handle.id} was released and is back")
            known = self._handles.get(handle.id)
            _expect(known is None or _physical(known) == _physical(handle), f"handle {handle.id} is another one now")
            _expect(handle.size > 0, f"handle {handle.id} has no bytes")
        _expect(len({handle.id for handle in handles}) == len(handles), "a handle is listed twice in one batch")
        self._handles.update({handle.id: handle for handle in handles})

    def _apply_mappings(self, mappings: Sequence[MappingRecord]) -> None:
        live = [mapping for mapping in mappings if mapping.id not in self._released]  # freed while it was listed
        for mapping in live:
            handle = self._handles.get(mapping.id)
            _expect(handle is not None, f"mapping of handle {mapping.id}, which was never reported")
            inside = handle is not None and mapping.offset + mapping.size <= handle.size and mapping.size > 0
            _expect(inside, f"mapping at {mapping.address:#x} goes beyond handle {mapping.id}")
        self._mappings.update({(mapping.id, mapping.address): mapping for mapping in live})

    def _apply_released(self, ids: Sequence[int]) -> None:
        gone = set(ids)
        self._released |= gone
        self._handles = {id: handle for id, handle in self._handles.items() if id not in gone}
        self._mappings = {key: mapping for key, mapping in self._mappings.items() if key[0] not in gone}

    def _allocation(self, handle: HandleRecord, mappings: Sequence[MappingRecord]) -> Allocation:
        _expect(handle.device in self._ordinals, f"handle {handle.id} is on device {handle.device}, which has no UUID")
        _expect(len(mappings) == handle.mappings, f"handle {handle.id}: {len(mappings)} of {handle.mappings} mappings")
        spec = HandleSpec(handle.id, handle.size, handle.type, handle.compression, handle.rdma_capable, handle.usage)
        return Allocation(spec, self._ordinals[handle.device], tuple(mappings))


def _physical(handle: HandleRecord) -> tuple[int, ...]:
    """What never changes in the life of a handle; its mappings may."""
    return (handle.size, handle.device, handle.type, handle.compression, handle.rdma_capable, handle.usage)


def _reason(number: int) -> Reason:
    return Reason(number) if number in Reason._value2member_map_ else Reason.COUNT


def _expect(fits: bool, otherwise: str) -> None:
    if not fits:
        raise Contradiction(otherwise)
