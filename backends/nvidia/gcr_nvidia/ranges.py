"""Physical handles mapped side by side in one reserved range of this worker's address space.

Order of calls, and why: handles first, then one reservation of their sum, one map each, one access call over all of it
(25-30 us a handle; one call over each would cost the same again). Taking apart goes the other way round. The caller
has made the device's context current.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gcr.drain import DeviceRange, HandleSpec
from gcr.errors import DriverError
from gcr_nvidia.driver import bindings, cuda, enum

log = logging.getLogger("gcr.nvidia")


def allocation_prop(ordinal: int, spec: HandleSpec | None) -> Any:
    """A CUmemAllocationProp: exportable and as the program asked, or plain when there is no spec."""
    prop = bindings().CUmemAllocationProp()
    prop.location = _location(ordinal)
    prop.type = bindings().CUmemAllocationType(spec.type if spec else 1)
    if spec is None:
        return prop
    prop.requestedHandleTypes = posix_descriptor()
    prop.allocFlags.compressionType = spec.compression
    prop.allocFlags.gpuDirectRDMACapable = spec.rdma_capable
    prop.allocFlags.usage = spec.usage
    return prop


def posix_descriptor() -> Any:
    return enum("CUmemAllocationHandleType", "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR")


def granularity(ordinal: int) -> int:
    """Bytes that every physical allocation of a device is a multiple of."""
    minimum = enum("CUmemAllocationGranularity_flags", "CU_MEM_ALLOC_GRANULARITY_MINIMUM")
    return int(cuda.cuMemGetAllocationGranularity(allocation_prop(ordinal, None), minimum))


def _location(ordinal: int) -> Any:
    location = bindings().CUmemLocation()
    location.type = enum("CUmemLocationType", "CU_MEM_LOCATION_TYPE_DEVICE")
    location.id = ordinal
    return location


def _read_write(ordinal: int) -> Any:
    access = bindings().CUmemAccessDesc()
    access.location = _location(ordinal)
    access.flags = enum("CUmemAccess_flags", "CU_MEM_ACCESS_FLAGS_PROT_READWRITE")
    return access


@dataclass(frozen=True, slots=True)
class Piece:
    """One handle of a range. The driver's handle and our reference to it are the same thing."""

    spec: HandleSpec
    handle: Any
    offset: int


@dataclass(slots=True)
class OwnedRange:
    """A reserved range and the handles still mapped in it."""

    address: int
    size: int
    pieces: dict[int, Piece] = field(default_factory=dict)

    def describe(self) -> DeviceRange:
        return DeviceRange(self.address, self.size, {id: piece.offset for id, piece in self.pieces.items()})

    def piece(self, id: int) -> Piece:
        try:
            return self.pieces[id]
        except KeyError:
            raise DriverError(f"handle {id} is not in the range at {self.address:#x}") from None

    def drop(self, ids: Iterable[int]) -> None:
        """Unmap and release some handles; a failure leaves the rest as they are."""
        for id in ids:
            piece = self.piece(id)
            cuda.cuMemUnmap(self.address + piece.offset, piece.spec.size)
            del self.pieces[id]
            cuda.cuMemRelease(piece.handle)

    def export(self, id: int) -> int:
        """A new descriptor of a handle, closed on exec."""
        fd = int(cuda.cuMemExportToShareableHandle(self.piece(id).handle, posix_descriptor(), 0))
        os.set_inheritable(fd, False)
        return fd

    def dissolve(self) -> None:
        """Unmap and release everything and the range. Goes on after an error and raises the first."""
        failed: list[DriverError] = []
        for start, end in runs(self.pieces.values()):
            _try(failed, partial(cuda.cuMemUnmap, self.address + start, end - start))
        for piece in self.pieces.values():
            _try(failed, partial(cuda.cuMemRelease, piece.handle))
        self.pieces.clear()
        _try(failed, partial(cuda.cuMemAddressFree, self.address, self.size))
        if failed:
            raise failed[0]


def runs(pieces: Iterable[Piece]) -> Sequence[tuple[int, int]]:
    """Stretches [start, end) without a hole: one unmap each, since the driver refuses an unmapped stretch."""
    merged: list[tuple[int, int]] = []
    for piece in sorted(pieces, key=lambda each: each.offset):
        start, end = piece.offset, piece.offset + piece.spec.size
        if merged and merged[-1][1] == start:
            start = merged.pop()[0]
        merged.append((start, end))
    return merged


def map_side_by_side(ordinal: int, specs: Sequence[HandleSpec], handles: Sequence[Any]) -> OwnedRange:
    """Map handles in order into one new range; on failure nothing stays mapped and the handles stay the caller's."""
    size = sum(spec.size for spec in specs)
    with ExitStack() as undo:
        address = int(cuda.cuMemAddressReserve(size, 0, 0, 0))
        undo.callback(quietly, "cuMemAddressFree", partial(cuda.cuMemAddressFree, address, size))
        owned = OwnedRange(address, size)
        offset = 0
        for spec, handle in zip(specs, handles, strict=True):
            cuda.cuMemMap(address + offset, spec.size, 0, handle, 0)
            undo.callback(quietly, "cuMemUnmap", partial(cuda.cuMemUnmap, address + offset, spec.size))
            owned.pieces[spec.id] = Piece(spec, handle, offset)
            offset += spec.size
        cuda.cuMemSetAccess(address, size, [_read_write(ordinal)], 1)
        undo.pop_all()
    return owned


def quietly(step: str, undo: Callable[[], object]) -> None:
    """An undo that must neither hide the first error nor stop the other undos."""
    try:
        undo()
    except DriverError as second:
        log.error("undo: %s", second, extra={"step": step})


def _try(failed: list[DriverError], step: Callable[[], object]) -> None:
    try:
        step()
    except DriverError as error:
        failed.append(error)
