"""A ring, a few slots of pinned memory: a process's bytes pass through it where the arena lacks room for all.

    made      before anything stops
    filled    device -> slot: a window of the line of all bytes
    emptied   slot -> device: the same
    dropped   the memory is the arena's again

The image helper has the same memory by descriptors. The daemon decides which process may use a slot at an instant:
this module does not look at the bytes (streaming.py copies).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from gcr.drain import DeviceRange, Span
from gcr.errors import RolledBack, UsageError
from gcr.memory.arena import Segments
from gcr.memory.layout import Layout, spans_of_parts
from gcr.memory.pieces import NotInPieces, Pieces

Part = tuple[DeviceRange, int, int, int]  # the range, the offset in it, the arena offset, the size


class Line(Struct, frozen=True):
    """Allocations in the order of their offsets, each with its place on the device: the range, and the offset in it."""

    ranges: Sequence[DeviceRange]
    layout: Layout
    allocations: Pieces
    places: Sequence[tuple[DeviceRange, int]]

    def parts(self, offset: int, size: int, to: int) -> list[Part]:
        """Returns the parts of a window of the line; its first byte is at arena offset `to`. Raises NotInPieces."""
        found: list[Part] = []
        for cut in self.allocations.cuts([(offset, size)]):
            where, at = self.places[cut.piece]
            found.append((where, at + cut.at, to + cut.done, cut.size))
        return found


@dataclass(slots=True)
class Ring:
    """`count` slots of `slot_bytes`, back to back on the line of `segments`."""

    segments: Segments
    slot_bytes: int
    count: int
    _line: Line | None = field(default=None, repr=False)

    def place(self, slot: int, size: int) -> int:
        """Returns the offset of a slot that can hold `size` bytes. Raises UsageError for an unknown one."""
        if not 0 <= slot < self.count or not 0 < size <= self.slot_bytes:
            raise UsageError(f"no {size} bytes are in slot {slot} of {self.count}, of {self.slot_bytes} bytes each")
        return slot * self.slot_bytes

    def spans(
        self,
        slot: int,
        windows: Sequence[tuple[int, int]],
        ranges: Sequence[DeviceRange],
        layout: Layout,
        sizes: Mapping[int, int],
    ) -> Sequence[Span]:
        """Returns the copies of windows (offset on the line, size), one behind the other in a slot, and the device.

        Raises UsageError, and RolledBack where not all of them is held.
        """
        if any(size <= 0 for _, size in windows):
            raise UsageError("a window has one byte at least")
        to = self.place(slot, sum(size for _, size in windows))
        line, parts = self._known(ranges, layout, sizes), list[Part]()
        for offset, size in windows:
            try:
                parts += line.parts(offset, size, to)
            except NotInPieces as error:
                raise RolledBack(f"{size} bytes from {offset} on are not held here") from error
            to += size
        return spans_of_parts(parts, self.segments.parts)

    def _known(self, ranges: Sequence[DeviceRange], layout: Layout, sizes: Mapping[int, int]) -> Line:
        """Returns the line, made once for many windows."""
        known = self._line
        if known is None or known.layout is not layout or known.ranges != tuple(ranges):
            self._line = known = line_of(ranges, layout, sizes)
        return known


def line_of(ranges: Sequence[DeviceRange], layout: Layout, sizes: Mapping[int, int]) -> Line:
    offsets, places = layout.offsets, {id: (each, at) for each in ranges for id, at in each.offsets.items()}
    held = sorted(places, key=offsets.__getitem__)
    allocations = Pieces([offsets[id] for id in held], [offsets[id] + sizes[id] for id in held])
    return Line(tuple(ranges), layout, allocations, [places[id] for id in held])
