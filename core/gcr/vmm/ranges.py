"""Physical handles mapped side by side in one reserved range of this worker's address space.

Order of calls, and why: handles first, then one reservation of their sum, one map each, one access call over all of it
(25-30 us a handle on an H200; one call over each would cost the same again). Taking apart goes the other way round.
The caller has made the device current.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial

from msgspec import Struct, field

from gcr.drain import DeviceRange, HandleSpec
from gcr.errors import DriverError
from gcr.vmm.driver import Physical, VmmDriver

log = logging.getLogger("gcr.vmm")


class Piece(Struct, frozen=True):
    """One handle of a range."""

    spec: HandleSpec
    handle: Physical
    offset: int


class OwnedRange(Struct):
    """A reserved range and the handles still mapped in it."""

    driver: VmmDriver
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
            self.driver.unmap(self.address + piece.offset, piece.spec.size)
            del self.pieces[id]
            self.driver.release(piece.handle)

    def export(self, id: int) -> int:
        return self.driver.export(self.piece(id).handle)

    def dissolve(self) -> None:
        """Unmap and release everything and the range. Goes on after an error and raises the first."""
        failed: list[DriverError] = []
        for start, end in self._stretches():
            _try(failed, partial(self.driver.unmap, self.address + start, end - start))
        for piece in self.pieces.values():
            _try(failed, partial(self.driver.release, piece.handle))
        self.pieces.clear()
        _try(failed, partial(self.driver.unreserve, self.address, self.size))
        if failed:
            raise failed[0]

    def _stretches(self) -> Sequence[tuple[int, int]]:
        if self.driver.unmaps_runs:
            return runs(self.pieces.values())
        return [(piece.offset, piece.offset + piece.spec.size) for piece in self.pieces.values()]


def runs(pieces: Iterable[Piece]) -> Sequence[tuple[int, int]]:
    """Stretches [start, end) without a hole: one unmap each, since a driver refuses an unmapped stretch."""
    merged: list[tuple[int, int]] = []
    for piece in sorted(pieces, key=lambda each: each.offset):
        start, end = piece.offset, piece.offset + piece.spec.size
        if merged and merged[-1][1] == start:
            start = merged.pop()[0]
        merged.append((start, end))
    return merged


def map_side_by_side(driver: VmmDriver, specs: Sequence[HandleSpec], handles: Sequence[Physical]) -> OwnedRange:
    """Map handles in order into one new range; on failure nothing stays mapped and the handles stay the caller's."""
    size = sum(spec.size for spec in specs)
    with ExitStack() as undo:
        address = driver.reserve(size)
        undo.callback(quietly, "unreserve", partial(driver.unreserve, address, size))
        owned = OwnedRange(driver, address, size)
        offset = 0
        for spec, handle in zip(specs, handles, strict=True):
            driver.map(address + offset, spec.size, handle)
            undo.callback(quietly, "unmap", partial(driver.unmap, address + offset, spec.size))
            owned.pieces[spec.id] = Piece(spec, handle, offset)
            offset += spec.size
        driver.allow(address, size)
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
