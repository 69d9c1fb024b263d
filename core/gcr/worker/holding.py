"""What a worker keeps of one process: its handed-over memory, its part of the arena, and the plan that ties them.

One lock a holding. It is not held while a copy is waited for, so that handles can be exported meanwhile; whoever unmaps
waits for the copies in flight first.
"""

import logging
import os
import time
from collections.abc import Iterable, Sequence
from itertools import accumulate
from threading import Lock, RLock
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.drain import Ballast, DataDrain, DeviceRange, Handed, HandleSpec, Span, Transfer
from gcr.errors import NoDescriptors, PeerGone, RolledBack, WrongState
from gcr.hashing.baseline import Baseline
from gcr.memory.arena import Arena, Segments
from gcr.memory.escrow import duplicate
from gcr.memory.layout import Layout, SealedHandle, SealedSegment, SealedTable, Segment, spans
from gcr.memory.partial import PartialTable, Where
from gcr.protocol.seqpacket import close_all
from gcr.protocol.wire import MappingRecord
from gcr.worker.arriving import Arriving
from gcr.worker.attachment import Attachment
from gcr.worker.live import LiveCopy
from gcr.worker.ring import Ring
from gcr.worker.snapshot import Snapshot
from gcr.worker.telling import Progress, Telling, outcome, wait_all

log = logging.getLogger("gcr.worker")

UNMAP_PATIENCE = 60.0  # a copy over the link always ends; unmapping under it would break the context


class Holding(Struct):
    attachment: Attachment
    arena: Arena
    device: str
    owner: str = ""  # of its part of the arena: no later process has it
    specs: dict[int, HandleSpec] = field(default_factory=dict)
    ranges: list[DeviceRange] = field(default_factory=list)
    segments: Segments | None = None
    layout: Layout | None = None
    ballast: Ballast | None = None
    ballast_bytes: int = 0
    arriving: Arriving | None = None
    parent: Baseline | None = None  # what an image of it has already; for the next copy
    live: LiveCopy | None = None
    snapshot: Snapshot | None = None
    ring: Ring | None = None  # the bytes pass through it: there are no segments then
    name: str = ""  # for people
    kept: dict[int, int] = field(default_factory=dict)  # id -> descriptor: what was imported cannot be exported again
    lock: RLock = field(default_factory=RLock)
    copies: list[Transfer] = field(default_factory=list)
    reading: Lock = field(default_factory=Lock)  # the arena's memory is hashed; taken inside `lock`, never the reverse

    @property
    def drain(self) -> DataDrain:
        """Raises NoContext."""
        return self.attachment.drain

    @property
    def uses_the_device(self) -> bool:
        with self.lock:
            return bool(self.ranges or self.ballast or (self.snapshot and self.snapshot.room))

    @property
    def device_bytes(self) -> int:
        """Device memory held here, of all kinds. Without the lock: who only looks waits for no copy."""
        sizes = dict(self.specs)
        handles = (i for where in list(self.ranges) for i in where.offsets)
        room = self.snapshot.room if self.snapshot else None
        return self.ballast_bytes + (room.size if room else 0) + sum(sizes[i].size for i in handles if i in sizes)

    @property
    def sizes(self) -> dict[int, int]:
        return {spec.id: spec.size for spec in self.specs.values()}

    @property
    def planned(self) -> Layout:
        """Where its bytes are, or will be. Raises PeerGone where all was forfeited meanwhile."""
        if self.layout is None:
            raise PeerGone("the process has ended, and what was kept of it was given back")
        return self.layout

    # ---- memory from the program, and back to it --------------------------------------------------------------

    def adopt(self, handed: Sequence[Handed], drain: DataDrain) -> None:
        """Takes the descriptors; a duplicate of each is kept, for a keeper that comes after the present one's death."""
        with self.lock:
            copies = duplicates(handed)
            try:
                self.ranges.append(drain.adopt(handed))
            except BaseException:
                close_all(list(copies.values()))
                raise
            self.specs.update({h.spec.id: h.spec for h in handed})
            self._drop_kept(copies)
            self.kept.update(copies)

    def held(self) -> list[int]:
        with self.lock:
            return [i for where in self.ranges for i in where.offsets]

    def forget(self, ids: Sequence[int]) -> None:
        with self.lock:
            self._finish_copies()
            for index, where in enumerate(self.ranges):
                mine = [i for i in ids if i in where.offsets]
                if mine:
                    self.drain.forget(where, mine)
                    left = {i: at for i, at in where.offsets.items() if i not in mine}
                    self.ranges[index] = replace(where, offsets=left)
            for i in ids:
                self.specs.pop(i, None)
                if self.live:
                    self.live.forget(i)
            self._drop_kept(ids)

    def _drop_kept(self, ids: Iterable[int]) -> None:
        close_all([self.kept.pop(i) for i in list(ids) if i in self.kept])

    def create(self, ballast: int) -> None:
        """Physical memory for all handles, in arena order, and ballast. Raises NoRoom with nothing kept."""
        with self.lock:
            if self.ranges:
                raise WrongState("this memory exists already")
            offsets = self.planned.offsets
            order = sorted(offsets, key=offsets.__getitem__)
            made = self.drain.create([self.specs[i] for i in order]) if order else None
            try:
                self._take_ballast(ballast)
            except BaseException:
                if made:
                    self.drain.release(made)
                raise
            self.ranges = [made] if made else []

    def export(self, ids: Sequence[int]) -> list[int]:
        """Descriptors, in the order of `ids`; the caller's."""
        with self.lock:
            found: dict[int, int] = {}
            try:
                for where in self.ranges:
                    self._export_some([i for i in ids if i in where.offsets], where, found)
                if len(found) != len(ids):
                    raise RolledBack(f"{len(ids) - len(found)} handles are not held here")
            except BaseException:
                close_all(list(found.values()))
                raise
            return [found[i] for i in ids]

    def _export_some(self, ids: Sequence[int], where: DeviceRange, found: dict[int, int]) -> None:
        """What came with a descriptor leaves with a duplicate of it, all else by the driver."""
        found.update({i: os.dup(self.kept[i]) for i in ids if i in self.kept})
        if rest := [i for i in ids if i not in self.kept]:
            found.update({h.spec.id: h.fd for h in self.drain.export(where, rest)})

    def hold_ballast(self, nbytes: int) -> None:
        """Occupy what the driver gave back, until `drop_ballast` or `release`. Raises NoRoom."""
        with self.lock:
            if self.ballast is None:
                self._take_ballast(nbytes)

    def _take_ballast(self, nbytes: int) -> None:
        self.ballast = self.drain.ballast(nbytes) if nbytes else None
        self.ballast_bytes = nbytes

    def drop_ballast(self) -> None:
        with self.lock:
            if self.ballast:
                self.ballast.release()
            self.ballast, self.ballast_bytes = None, 0

    def release(self) -> None:
        """Let go of device memory; the copy in the arena stays. Waits for copies in flight."""
        with self.lock:
            self._finish_copies()
            self.drop_ballast()
            self.give_room_back()
            while self.ranges:
                self.drain.release(self.ranges[-1])
                self.ranges.pop()
            self._drop_kept(list(self.kept))
            if self.layout is None:
                self.specs.clear()

    def give_room_back(self) -> None:
        """The snapshot's. Waits for a copy in flight."""
        with self.lock:
            if self.snapshot and self.snapshot.room:
                self._finish_copies()
                self.drain.release(self.snapshot.room)
                self.snapshot.room = None
                self.snapshot.over.set()

    def _finish_copies(self) -> None:
        for copy in self.copies:
            copy.wait(UNMAP_PATIENCE)
        self.copies = []

    def forget_copy(self) -> None:
        """The process has its bytes back, or never gave them: the arena's are nobody's now."""
        with self.lock, self.reading:
            self._finish_copies()
            self.give_room_back()
            self.settle()
            self.give_arena_back()
            self.layout = self.live = self.parent = self.snapshot = None
            self.specs = {i: self.specs[i] for where in self.ranges for i in where.offsets}

    def give_arena_back(self) -> None:
        with self.lock:
            self.drop_ring()
            if self.segments:
                self.arena.give_back(self.segments)
            self.segments = None

    def drop_ring(self) -> None:
        """Waits for copies in flight: nothing of ours is written there any more."""
        with self.lock:
            if self.ring:
                self._finish_copies()
                self.arena.give_back(self.ring.segments)
            self.ring = None

    def settle(self) -> None:
        """What was arriving is here, or will never be."""
        with self.lock:
            try:
                if self.arriving:
                    self.segments = self.arriving.finish()
            except RolledBack as error:
                log.warning("segments of %s did not arrive: %s", self.name, error)
                self.layout = None  # they can be handed over again
            self.arriving = None

    def surrender(self) -> None:
        """Another worker goes on with the copy: nothing of ours may be written to the same memory again."""
        with self.lock, self.reading:
            self.release()
            self.settle()
            if self.ring:  # whoever filled it may hang in a disk, and write to it when that answers
                self.arena.hand_on(self.ring.segments)
            if self.segments:
                self.arena.hand_on(self.segments)
            self.ring = self.segments = self.layout = self.live = self.parent = None

    def forfeit(self) -> None:
        with self.lock:
            self.release()
            self.forget_copy()

    # ---- bytes ------------------------------------------------------------------------------------------------

    def reserve(self, nbytes: int) -> None:
        """Arena segments of at least `nbytes`. Raises NoRoom."""
        with self.lock:
            if self.segments and self.segments.size >= nbytes and self.arena.may_be_written(self.segments):
                return
            self.give_arena_back()
            self.segments = self.arena.take(self.owner, nbytes)

    def lay_out(self, specs: Sequence[HandleSpec]) -> None:
        """Places in the arena for bytes that somebody else copies, back to back in this order. Raises NoRoom."""
        with self.lock:
            starts = list(accumulate((spec.size for spec in specs), initial=0))
            self.reserve(starts[-1])
            self.specs.update({spec.id: spec for spec in specs})
            self.layout = Layout({spec.id: at for spec, at in zip(specs, starts, strict=False)}, starts[-1])

    def reserve_known(self, nbytes: int) -> None:
        """For all there is, `nbytes`; of a live copy for what has come since as well. Raises NoRoom."""
        with self.lock:
            self.reserve_more(self.live.laid_out_for(self.sizes).size if self.live else nbytes)

    def reserve_more(self, nbytes: int, promised: bool = False) -> None:
        """What a live copy is in stays what it is; else as `reserve`. `promised`: what is lacking is not there before
        it was kept (gcr.memory.arena). Raises NoRoom."""
        with self.lock:
            if self.live is None or self.segments is None:
                self.reserve(nbytes)
            elif (missing := nbytes - self.segments.size) > 0:
                more = (self.arena.promise if promised else self.arena.take)(self.owner, missing)
                self.segments = Segments(self.owner, (*self.segments.parts, *more.parts))

    def keep_promised(self) -> None:
        """Of what was reserved. Raises NoRoom."""
        with self.lock:
            segments = self.segments
        if segments:  # the lock is not held: whoever unmaps would wait
            self.arena.keep(segments)

    def copy_in(self, deadline: float, progress: Progress) -> dict[str, float]:
        """Segment after segment, each as soon as it is pinned."""
        began, drain = time.monotonic(), self.drain
        with self.lock:
            size = sum(self.specs[i].size for i in self.planned.offsets)
            copies: list[Transfer] = []
            self.copies = copies
            groups = self._plan_by_segment()
        telling = Telling(copies, progress)
        for index, plan in enumerate(groups):
            segment = self._segment(index, began + deadline - time.monotonic())
            placed = [Span(s.device, s.host + segment.address, s.size) for s in plan]
            copies.append(drain.write(placed))
            telling.now_and_then()
        wait_all(telling, began + deadline)
        with self.lock:
            if self.arriving:
                self.segments, self.arriving = self.arriving.finish(), None
        return outcome(size, time.monotonic() - began)

    def _plan_by_segment(self) -> list[list[Span]]:
        """Copies grouped by segment; `host` counts from the segment's first byte."""
        layout, sizes = self.planned, self._segment_sizes()
        starts = [0, *accumulate(sizes)]
        line = [Segment(-1, start, size) for start, size in zip(starts, sizes, strict=False)]
        groups: list[list[Span]] = [[] for _ in sizes]
        index = 0
        for span in spans(self.ranges, self.sizes, layout, line):
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

    def _segment(self, index: int, timeout: float) -> Segment:
        if self.arriving:
            return self.arriving.wait(index, timeout)
        assert self.segments
        return self.segments.parts[index]

    # ---- the sealed table -------------------------------------------------------------------------------------

    def seal(self, about: dict[str, Any]) -> SealedTable:
        """Raises WrongState for a copy that lacks something: the process could not come back from it."""
        with self.lock:
            if self.snapshot and self.snapshot.later:
                raise WrongState("a part of the copy is on the device still: it is for an image alone")
            lacking = [i for i, where in self.seal_for_image(about).chunks.items() if Where.PARENT in where]
            if lacking:
                raise WrongState(f"the copy has not all of {len(lacking)} allocations: it is for an image alone")
            return self._table(about)

    def seal_for_image(self, about: dict[str, Any]) -> PartialTable:
        """Of what was copied at the cut. Raises WrongState where a live copy came to none."""
        with self.lock:
            table = self._table(about)
            if self.live is None:
                return PartialTable.whole(table)
            if self.live.cut is None:
                raise WrongState("what was copied while the program ran is of no cut")
            return PartialTable(table, self.live.cut)

    def _table(self, about: dict[str, Any]) -> SealedTable:
        with self.lock:
            offsets = self.planned.offsets
            assert self.segments is not None or self.ring
            return SealedTable(
                job=about["job"],
                pid=about["pid"],
                start_time=about["start_time"],
                transaction=about["transaction"],
                ordinals={int(k): v for k, v in about["ordinals"].items()},
                handles=tuple(SealedHandle(self.specs[i], self.device, at) for i, at in offsets.items()),
                mappings=tuple(MappingRecord(*row) for row in about["mappings"] if row[0] in offsets),
                segments=tuple(SealedSegment(self.device, part.size) for part in self.segments or ()),
            )

    def reclaim(self, table: SealedTable, fds: Sequence[int]) -> None:
        """Take a suspended process over: its table, and its segments, which are mapped and pinned meanwhile."""
        with self.lock:
            self.specs = {h.spec.id: h.spec for h in table.handles}
            end = max((h.offset + h.spec.size for h in table.handles), default=0)
            self.layout = Layout({h.spec.id: h.offset for h in table.handles}, end)
            self.arriving = Arriving(self.arena, self.owner, fds, [part.size for part in table.segments])


def duplicates(handed: Sequence[Handed]) -> dict[int, int]:
    """By id; none at all where there are not enough descriptors left: the keeper's are the ones that count."""
    try:
        return dict(zip((h.spec.id for h in handed), duplicate([h.fd for h in handed]), strict=True))
    except NoDescriptors as error:
        log.warning("no duplicates of %d handles kept: %s", len(handed), error)
        return {}
