"""What a worker keeps of one process: its handed-over memory, its part of the arena, and the plan that ties them.

One lock a holding. It is not held while a copy is waited for, so that handles can be exported meanwhile; whoever unmaps
waits for the copies in flight first.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from threading import Event, RLock, Thread
from typing import Any

from gcr.arena import Arena, Segments
from gcr.drain import Ballast, DataDrain, DeviceRange, Handed, HandleSpec, Span, Transfer
from gcr.errors import DeadlinePassed, PeerGone, RolledBack, WrongState
from gcr.layout import Layout, SealedHandle, SealedSegment, SealedTable, Segment, pack, spans
from gcr.seqpacket import close_all
from gcr.supervisor.escrow import duplicate
from gcr.wire import MappingRecord
from gcr.worker.attachment import Attachment

log = logging.getLogger("gcr.worker")

PROGRESS_EVERY = 0.1
UNMAP_PATIENCE = 60.0  # a copy over the link always ends; unmapping under it would break the context
Progress = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class Holding:
    attachment: Attachment
    arena: Arena
    device: str
    owner: str = ""
    specs: dict[int, HandleSpec] = field(default_factory=dict)
    ranges: list[DeviceRange] = field(default_factory=list)
    segments: Segments | None = None
    layout: Layout | None = None
    ballast: Ballast | None = None
    ballast_bytes: int = 0
    arriving: "Arriving | None" = None
    kept: dict[int, int] = field(default_factory=dict)  # id -> descriptor: what was imported cannot be exported again
    lock: RLock = field(default_factory=RLock)
    _copies: list[Transfer] = field(default_factory=list)

    @property
    def drain(self) -> DataDrain:
        """Raises NoContext."""
        return self.attachment.drain

    @property
    def uses_the_device(self) -> bool:
        with self.lock:
            return bool(self.ranges or self.ballast)

    @property
    def device_bytes(self) -> int:
        """Device memory held here, ballast included. Without the lock: who only looks waits for no copy."""
        sizes = dict(self.specs)
        handles = (i for where in list(self.ranges) for i in where.offsets)
        return self.ballast_bytes + sum(sizes[i].size for i in handles if i in sizes)

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
            while self.ranges:
                self.drain.release(self.ranges[-1])
                self.ranges.pop()
            self._drop_kept(list(self.kept))
            if self.layout is None:
                self.specs.clear()

    def _finish_copies(self) -> None:
        for copy in self._copies:
            copy.wait(UNMAP_PATIENCE)
        self._copies = []

    def forget_copy(self) -> None:
        """The process has its bytes back, or never gave them: the arena's are nobody's now."""
        with self.lock:
            self.settle()
            if self.segments:
                self.arena.give_back(self.segments)
            self.segments = self.layout = None
            self.specs = {i: self.specs[i] for where in self.ranges for i in where.offsets}

    def settle(self) -> None:
        """What was arriving is here, or will never be."""
        with self.lock:
            try:
                if self.arriving:
                    self.segments = self.arriving.finish()
            except RolledBack as error:
                log.warning("segments of %s did not arrive: %s", self.owner, error)
                self.layout = None  # they can be handed over again
            self.arriving = None

    def surrender(self) -> None:
        """Another worker goes on with the copy: nothing of ours may be written to the same memory again."""
        with self.lock:
            self.release()
            self.settle()
            if self.segments:
                self.arena.hand_on(self.segments)
            self.segments = self.layout = None

    def forfeit(self) -> None:
        with self.lock:
            self.release()
            self.forget_copy()

    # ---- bytes ------------------------------------------------------------------------------------------------

    def reserve(self, nbytes: int) -> None:
        """Arena segments of at least `nbytes`. Raises NoRoom."""
        with self.lock:
            if self.segments and self.segments.size >= nbytes:
                return
            if self.segments:
                self.arena.give_back(self.segments)
                self.segments = None
            self.segments = self.arena.take(self.owner, nbytes)

    def lay_out(self, specs: Sequence[HandleSpec]) -> None:
        """Places in the arena for bytes that somebody else copies, back to back in this order. Raises NoRoom."""
        with self.lock:
            starts = list(accumulate((spec.size for spec in specs), initial=0))
            self.reserve(starts[-1])
            self.specs.update({spec.id: spec for spec in specs})
            self.layout = Layout({spec.id: at for spec, at in zip(specs, starts, strict=False)}, starts[-1])

    def copy_out(self, deadline: float, progress: Progress) -> dict[str, float]:
        began = time.monotonic()
        with self.lock:
            self.layout = layout = pack(self.ranges, self.sizes)
            self.reserve(layout.size)
            assert self.segments
            plan = spans(self.ranges, self.sizes, layout, self.segments.parts)
            self._copies = copies = [self.drain.read(plan)] if plan else []
        _wait(_Telling(copies, progress), began + deadline)
        return {**_outcome(layout.size, time.monotonic() - began), "handles": len(layout.offsets)}

    def copy_in(self, deadline: float, progress: Progress) -> dict[str, float]:
        """Segment after segment, each as soon as it is pinned."""
        began, drain = time.monotonic(), self.drain
        with self.lock:
            size = self.planned.size
            copies: list[Transfer] = []
            self._copies = copies
            groups = self._plan_by_segment()
        telling = _Telling(copies, progress)
        for index, plan in enumerate(groups):
            segment = self._segment(index, began + deadline - time.monotonic())
            placed = [Span(s.device, s.host + segment.address, s.size) for s in plan]
            copies.append(drain.write(placed))
            telling.now_and_then()
        _wait(telling, began + deadline)
        with self.lock:
            if self.arriving:
                self.segments, self.arriving = self.arriving.finish(), None
        return _outcome(size, time.monotonic() - began)

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
        with self.lock:
            offsets = self.planned.offsets
            assert self.segments is not None
            return SealedTable(
                job=about["job"],
                pid=about["pid"],
                start_time=about["start_time"],
                transaction=about["transaction"],
                ordinals={int(k): v for k, v in about["ordinals"].items()},
                handles=tuple(SealedHandle(self.specs[i], self.device, at) for i, at in offsets.items()),
                mappings=tuple(MappingRecord(*row) for row in about["mappings"] if row[0] in offsets),
                segments=tuple(SealedSegment(self.device, part.size) for part in self.segments),
            )

    def reclaim(self, table: SealedTable, fds: Sequence[int]) -> None:
        """Take a suspended process over: its table, and its segments, which are mapped and pinned meanwhile."""
        with self.lock:
            self.specs = {h.spec.id: h.spec for h in table.handles}
            end = max((h.offset + h.spec.size for h in table.handles), default=0)
            self.layout = Layout({h.spec.id: h.offset for h in table.handles}, end)
            self.arriving = Arriving(self.arena, self.owner, fds, [part.size for part in table.segments])


class Arriving:
    """Segments that came from elsewhere, being mapped and pinned in the background, in order."""

    def __init__(self, arena: Arena, owner: str, fds: Sequence[int], sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self._ready: list[Segment] = []
        self._events = [Event() for _ in sizes]
        self._segments: Segments | None = None
        self._error: BaseException | None = None
        self._thread = Thread(target=self._adopt, args=(arena, owner, fds), name="gcr-adopt", daemon=True)
        self._thread.start()

    def wait(self, index: int, timeout: float) -> Segment:
        if not self._events[index].wait(max(0.0, timeout)):
            raise DeadlinePassed("the arena's segments were not pinned in time")
        if self._error:
            raise RolledBack(f"the arena's segments cannot be used: {self._error}") from self._error
        return self._ready[index]

    def finish(self) -> Segments:
        self._thread.join(120.0)
        if self._segments is None:
            raise RolledBack(f"the arena's segments cannot be used: {self._error}")
        return self._segments

    def _adopt(self, arena: Arena, owner: str, fds: Sequence[int]) -> None:
        try:
            self._segments = arena.adopt(owner, fds, self.sizes, self._one_ready)
        except BaseException as error:  # handed to whoever waits
            self._error = error
            for event in self._events:
                event.set()

    def _one_ready(self, segment: Segment) -> None:
        self._ready.append(segment)
        self._events[len(self._ready) - 1].set()


@dataclass(slots=True)
class _Telling:
    """Says now and then how many bytes have moved."""

    copies: Sequence[Transfer]
    progress: Progress
    last: float = field(default_factory=time.monotonic)

    def now_and_then(self) -> None:
        now = time.monotonic()
        if now - self.last >= PROGRESS_EVERY:
            self.last = now
            self.progress({"bytes": sum(copy.done() for copy in self.copies)})


def _wait(telling: _Telling, end: float) -> None:
    """Until all are done. Raises DeadlinePassed; they stay the holding's to finish."""
    for copy in telling.copies:
        while not _ended(copy, end):
            telling.now_and_then()
        telling.now_and_then()


def _ended(copy: Transfer, end: float) -> bool:
    """After a short wait. Raises DeadlinePassed at the `end`."""
    try:
        copy.wait(min(PROGRESS_EVERY, max(0.0, end - time.monotonic())))
    except DeadlinePassed:
        if time.monotonic() >= end:
            raise
        return False
    return True


def duplicates(handed: Sequence[Handed]) -> dict[int, int]:
    """By id; none at all where there are not enough descriptors left: the keeper's are the ones that count."""
    try:
        return dict(zip((h.spec.id for h in handed), duplicate([h.fd for h in handed]), strict=True))
    except OSError as error:
        log.warning("no duplicates of %d handles kept: %s", len(handed), error)
        return {}


def _outcome(size: int, seconds: float) -> dict[str, float]:
    return {"bytes": size, "seconds": seconds}
