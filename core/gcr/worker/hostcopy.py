"""A process's part of the arena, and the plan that ties it to the process's device memory."""

from collections.abc import Sequence
from itertools import accumulate
from threading import Lock
from typing import Any

from msgspec import Struct, field

from gcr.drain import HandleSpec, Span
from gcr.errors import PeerGone, WrongState
from gcr.hashing.baseline import Baseline
from gcr.memory.arena import Arena, Segments
from gcr.memory.layout import Layout, SealedHandle, SealedSegment, SealedTable, Segment, spans
from gcr.memory.partial import PartialTable, Where
from gcr.protocol.wire import MappingRecord
from gcr.worker.arriving import Arriving
from gcr.worker.held import HeldMemory
from gcr.worker.live import LiveCopy
from gcr.worker.ring import Ring
from gcr.worker.snapshot import Snapshot


class HostCopy(Struct):
    """The copy of one process. The lock of its memory guards it as well."""

    memory: HeldMemory
    arena: Arena
    device: str
    owner: str = ""  # of its part of the arena; no later process has this name
    segments: Segments | None = None
    layout: Layout | None = None
    arriving: Arriving | None = None
    parent: Baseline | None = None  # bytes that an image of the process has; for the next copy
    live: LiveCopy | None = None
    snapshot: Snapshot | None = None
    ring: Ring | None = None  # the bytes pass through it, instead of `segments`
    reading: Lock = field(default_factory=Lock)  # the arena's memory is hashed; taken inside the memory's lock

    @property
    def planned(self) -> Layout:
        """The layout of the bytes. Raises PeerGone where the copy was forfeited meanwhile."""
        if self.layout is None:
            raise PeerGone("the process has ended, and what was kept of it was given back")
        return self.layout

    # ---- the arena's memory, and the snapshot's ---------------------------------------------------------------

    def reserve(self, nbytes: int) -> None:
        """Takes arena segments of at least `nbytes`. Raises NoRoom."""
        with self.memory.lock:
            if self.segments and self.segments.size >= nbytes and self.arena.may_be_written(self.segments):
                return
            self.give_arena_back()
            self.segments = self.arena.take(self.owner, nbytes)

    def lay_out(self, specs: Sequence[HandleSpec]) -> None:
        """Lays out bytes that the process's agent copies, back to back in this order. Raises NoRoom."""
        with self.memory.lock:
            starts = list(accumulate((spec.size for spec in specs), initial=0))
            self.reserve(starts[-1])
            self.memory.specs.update({spec.id: spec for spec in specs})
            self.layout = Layout({spec.id: at for spec, at in zip(specs, starts, strict=False)}, starts[-1])

    def reserve_known(self, nbytes: int) -> None:
        """Reserves `nbytes`, or the size of a live copy and all handles that came after it. Raises NoRoom."""
        with self.memory.lock:
            self.reserve_more(self.live.laid_out_for(self.memory.sizes).size if self.live else nbytes)

    def reserve_more(self, nbytes: int, promised: bool = False) -> None:
        """Adds segments to those of a live copy, or works as `reserve`. Raises NoRoom.

        promised: the added segments hold memory only after `keep_promised` (gcr.memory.arena).
        """
        with self.memory.lock:
            if self.live is None or self.segments is None:
                self.reserve(nbytes)
            elif (missing := nbytes - self.segments.size) > 0:
                more = (self.arena.promise if promised else self.arena.take)(self.owner, missing)
                self.segments = Segments(self.owner, (*self.segments.parts, *more.parts))

    def keep_promised(self) -> None:
        """Fills and pins the promised segments. Raises NoRoom."""
        with self.memory.lock:
            segments = self.segments
        if segments:  # without the lock, for which a call that unmaps would wait
            self.arena.keep(segments)

    def give_room_back(self) -> None:
        """Releases the room of the snapshot. Waits for transfers in flight."""
        with self.memory.lock:
            if self.snapshot and self.snapshot.room:
                self.memory.finish_transfers()
                self.memory.drain.release(self.snapshot.room)
                self.snapshot.room = None
                self.snapshot.over.set()

    def give_arena_back(self) -> None:
        with self.memory.lock:
            self.drop_ring()
            if self.segments:
                self.arena.give_back(self.segments)
            self.segments = None

    def drop_ring(self) -> None:
        """Returns the ring to the arena, once no transfer in flight writes there."""
        with self.memory.lock:
            if self.ring:
                self.memory.finish_transfers()
                self.arena.give_back(self.ring.segments)
            self.ring = None

    def hand_on(self) -> None:
        """Gives the segments to another worker: the arena never reuses them."""
        with self.memory.lock:
            if self.ring:  # its reader may hang on a disk, and write to it later
                self.arena.hand_on(self.ring.segments)
            if self.segments:
                self.arena.hand_on(self.segments)
            self.ring = self.segments = self.layout = self.live = self.parent = None

    # ---- bytes that come back ---------------------------------------------------------------------------------

    def plan_by_segment(self) -> list[list[Span]]:
        """Returns copies grouped by segment; `host` counts from the segment's first byte."""
        layout, sizes = self.planned, self._segment_sizes()
        starts = [0, *accumulate(sizes)]
        line = [Segment(-1, start, size) for start, size in zip(starts, sizes, strict=False)]
        groups: list[list[Span]] = [[] for _ in sizes]
        index = 0
        for span in spans(self.memory.ranges, self.memory.sizes, layout, line):
            while span.host >= starts[index + 1]:
                index += 1
            groups[index].append(Span(span.device, span.host - starts[index], span.size))
        while groups and not groups[-1]:
            groups.pop()
        return groups

    def _segment_sizes(self) -> list[int]:
        if self.arriving:
            return list(self.arriving.sizes)
        assert self.segments
        return [part.size for part in self.segments]

    def segment(self, index: int, timeout: float) -> Segment:
        if self.arriving:
            return self.arriving.wait(index, timeout)
        assert self.segments
        return self.segments.parts[index]

    def reclaim(self, table: SealedTable, fds: Sequence[int]) -> None:
        """Takes over the table of a suspended process, and its segments, which a thread maps and pins."""
        with self.memory.lock:
            self.memory.specs = {h.spec.id: h.spec for h in table.handles}
            end = max((h.offset + h.spec.size for h in table.handles), default=0)
            self.layout = Layout({h.spec.id: h.offset for h in table.handles}, end)
            self.arriving = Arriving(self.arena, self.owner, fds, [part.size for part in table.segments])

    # ---- the sealed table -------------------------------------------------------------------------------------

    def seal(self, about: dict[str, Any]) -> SealedTable:
        """Returns the sealed table. Raises WrongState for a copy that lacks bytes that a restore needs."""
        with self.memory.lock:
            if self.snapshot and self.snapshot.later:
                raise WrongState("a part of the copy is on the device still: it is for an image alone")
            lacking = [i for i, where in self.seal_for_image(about).chunks.items() if Where.PARENT in where]
            if lacking:
                raise WrongState(f"the copy has not all of {len(lacking)} allocations: it is for an image alone")
            return self._table(about)

    def seal_for_image(self, about: dict[str, Any]) -> PartialTable:
        """Returns the table of the copy at the cut. Raises WrongState where a live copy has none."""
        with self.memory.lock:
            table = self._table(about)
            if self.live is None:
                return PartialTable.whole(table)
            if self.live.cut is None:
                raise WrongState("what was copied while the program ran is of no cut")
            return PartialTable(table, self.live.cut)

    def _table(self, about: dict[str, Any]) -> SealedTable:
        with self.memory.lock:
            offsets = self.planned.offsets
            assert self.segments is not None or self.ring
            return SealedTable(
                job=about["job"],
                pid=about["pid"],
                start_time=about["start_time"],
                transaction=about["transaction"],
                ordinals={int(k): v for k, v in about["ordinals"].items()},
                handles=tuple(SealedHandle(self.memory.specs[i], self.device, at) for i, at in offsets.items()),
                mappings=tuple(MappingRecord(*row) for row in about["mappings"] if row[0] in offsets),
                segments=tuple(SealedSegment(self.device, part.size) for part in self.segments or ()),
            )
