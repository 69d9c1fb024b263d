"""A copy of a process: its part of the arena, and the plan that ties it to the process's device memory.

A process may have several copies. Each is of one transaction, and nothing of one is another's.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from threading import RLock

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.drain import HandleSpec, Transfer
from gcr.errors import NoRoom, PeerGone, RolledBack, WrongState
from gcr.hashing.baseline import Baseline
from gcr.memory.arena import Arena, Segments
from gcr.memory.layout import Layout, SealedHandle, SealedSegment, SealedTable
from gcr.memory.partial import PartialTable, Where
from gcr.protocol.operations.worker import ProcessFacts
from gcr.protocol.seqpacket import close_all
from gcr.protocol.wire import MappingRecord
from gcr.worker.former import Former, Left
from gcr.worker.held import HeldMemory
from gcr.worker.inflight import Use
from gcr.worker.live import LiveCopy
from gcr.worker.ring import Ring
from gcr.worker.snapshot import Snapshot


class HostCopy(Struct):
    """One copy of a process. The lock of `use` guards it; the lock of the memory, taken after it, guards `live`."""

    memory: HeldMemory
    arena: Arena
    device: str
    specs: Mapping[int, HandleSpec] = field(default_factory=dict)  # of the handles that are laid out
    layout: Layout | None = None
    segments: Segments | None = None
    parent: Baseline | None = None  # bytes that an image of the process has, and that the copy may lack: perhaps none
    live: LiveCopy | None = None
    snapshot: Snapshot | None = None
    ring: Ring | None = None  # the bytes pass through it, instead of `segments`
    former: Former | None = None  # None: no copy is left in the arena for the next one
    use: Use = field(default_factory=Use)

    @property
    def lock(self) -> RLock:
        return self.use.lock

    @property
    def owner(self) -> str:
        return self.memory.owner

    @property
    def planned(self) -> Layout:
        """The layout of the bytes. Raises PeerGone where the copy was forfeited meanwhile."""
        if self.layout is None:
            raise PeerGone("the process has ended, and what was kept of it was given back")
        return self.layout

    @property
    def room_bytes(self) -> int:
        """The bytes of the snapshot's room on the device. Takes no lock: a look does not wait for a copy."""
        rooms = self.snapshot.rooms if self.snapshot else []
        return sum(room.size for room in [*rooms])

    def handles(self) -> list[HandleSpec]:
        """Returns the handles in arena order. Raises as `planned`."""
        with self.lock:
            offsets = self.planned.offsets
            return [self.specs[i] for i in sorted(offsets, key=offsets.__getitem__)]

    def place(self, layout: Layout) -> None:
        """Lays held memory out for the copy."""
        with self.lock, self.memory.lock:
            self.layout, self.specs = layout, {i: self.memory.specs[i] for i in layout.offsets}

    def forget(self, ids: Sequence[int]) -> None:
        """Removes handles from a live copy that has no cut yet. The memory's lock is held."""
        if self.live and self.live.cut is None:
            for i in ids:
                self.live.forget(i)

    # ---- its use ------------------------------------------------------------------------------------------------

    def refuse_given_up(self) -> None:
        """Raises RolledBack where the copy was given up, and nothing may be taken for it. The lock is held."""
        if self.use.given_up:
            raise RolledBack("what was being copied was given up meanwhile")

    def began(self, transfers: Sequence[Transfer]) -> None:
        """Notes transfers between the copy and the memory of the process: the release of either waits for them."""
        with self.lock, self.memory.lock:
            self.use.transfers.began(transfers)
            self.memory.transfers.began(transfers)

    def ended(self, transfers: Sequence[Transfer]) -> None:
        """Forgets transfers that were waited for."""
        with self.lock, self.memory.lock:
            self.use.transfers.ended(transfers)
            self.memory.transfers.ended(transfers)

    def give_up(self) -> None:
        """Returns all memory of the copy, and leaves its bytes for the next one where it has all of them.

        Waits for transfers in flight, and for threads that hash. Idempotent.
        """
        with self.lock, self.use.reading:
            self.use.given_up = True
            self.give_room_back()
            later = self.snapshot and self.snapshot.later
            if self.former and self.segments and self.live and self.live.is_whole and not later:
                self.use.transfers.finish()
                self.former.leave(Left(self.segments, self.live.begun_again(self.planned)))
                self.segments = None
            self.give_arena_back()
            self.layout = self.live = self.parent = self.snapshot = None

    def surrender(self) -> None:
        """Gives the segments to another worker: the arena never reuses them."""
        with self.lock, self.use.reading:
            self.use.given_up = True
            self.give_room_back()
            self.use.transfers.finish()
            if self.ring:  # its reader may hang on a disk, and write to it later
                self.arena.hand_on(self.ring.segments)
            if self.segments:
                self.arena.hand_on(self.segments)
            self.ring = self.segments = self.layout = self.live = self.parent = None

    # ---- the arena's memory, and the snapshot's ---------------------------------------------------------------

    def reserve(self, nbytes: int) -> None:
        """Takes arena segments of at least `nbytes`. Raises NoRoom."""
        with self.lock:
            self.refuse_given_up()
            if self.segments and self.segments.size >= nbytes and self.segments.may_be_written():
                return
            self.give_arena_back()
            self.segments = self.arena.take(self.owner, nbytes)

    def lay_out(self, specs: Sequence[HandleSpec]) -> None:
        """Lays out bytes that the process's agent copies, back to back in this order. Raises NoRoom."""
        with self.lock:
            starts = list(accumulate((spec.size for spec in specs), initial=0))
            self.reserve(starts[-1])
            self.specs = {spec.id: spec for spec in specs}
            self.layout = Layout({spec.id: at for spec, at in zip(specs, starts, strict=False)}, starts[-1])

    def reserve_known(self, nbytes: int) -> None:
        """Reserves `nbytes`, or the size of an earlier copy and all handles that came after it. Raises NoRoom.

        The former copy of the process becomes the earlier one, if the arena has it and none is begun.
        """
        with self.lock:
            begun = self.segments or self.live or self.parent
            left = self.former.take(self.memory.sizes) if self.former and not begun else None
            if left:
                self.segments, self.live = left.segments, left.books
            try:
                self.reserve_more(self.live.laid_out_for(self.memory.sizes).size if self.live else nbytes)
            except NoRoom:
                if left is None:
                    raise
                self.give_arena_back()
                self.live = None
                self.reserve_more(nbytes)

    def compare_with(self, parent: Baseline, whole: bool = False) -> None:
        """Compares with the bytes of an image. Only before the copy is made.

        A former copy with hashes of the same key stays, and is compared with as well: the copy gets every byte then.
        parent: without allocations it tells the key alone, by which the copy's image hashes
        whole: the copy gets every byte, since a process may have to come back from it.
        """
        with self.lock:
            former, kept = self.live, self.live is not None and self.live.key == parent.key
            self.parent = replace(parent, whole=whole or kept)
            if parent.allocations:
                self.live = former.begun_again(former.layout, self.parent) if former and kept else None

    def reserve_more(self, nbytes: int, promised: bool = False) -> None:
        """Adds segments to those of a live copy, or works as `reserve`. Raises NoRoom.

        promised: the added segments hold memory only after `keep_promised` (gcr.memory.arena).
        """
        with self.lock:
            self.refuse_given_up()
            if self.live is None or self.segments is None:
                self.reserve(nbytes)
            elif (missing := nbytes - self.segments.size) > 0:
                more = (self.arena.promise if promised else self.arena.take)(self.owner, missing)
                self.segments = Segments(self.owner, (*self.segments.parts, *more.parts))

    def keep_promised(self) -> None:
        """Fills and pins the promised segments. Raises NoRoom."""
        with self.lock:
            segments = self.segments
        if segments:  # without the lock, for which the end of the copy would wait
            self.arena.keep(segments)

    def give_room_back(self) -> None:
        """Releases the room of the snapshot. Waits for transfers in flight."""
        with self.lock:
            if self.snapshot and self.snapshot.rooms:
                self.use.transfers.finish()
                while self.snapshot.rooms:
                    self.memory.drain.release(self.snapshot.rooms.pop())
                self.snapshot.over.set()

    def give_arena_back(self) -> None:
        """Returns ring and segments to the arena. Waits for transfers in flight."""
        with self.lock:
            self.drop_ring()
            if self.segments:
                self.use.transfers.finish()
                self.arena.give_back(self.segments)
            self.segments = None

    def drop_ring(self) -> None:
        """Returns the ring to the arena, once no transfer in flight writes there."""
        with self.lock:
            if self.ring:
                self.use.transfers.finish()
                self.arena.give_back(self.ring.segments)
            self.ring = None

    def reclaim(self, table: SealedTable, fds: Sequence[int]) -> None:
        """Takes over the table of a suspended process and its segments, which are not pinned.

        Takes the descriptors, also where it fails. Raises RolledBack, NotASegment, NoRoom (addresses).
        """
        with self.lock:
            if self.use.given_up:
                close_all(fds)
            self.refuse_given_up()
            self.segments = self.arena.adopt(self.owner, fds, [part.size for part in table.segments])
            self.specs = {h.spec.id: h.spec for h in table.handles}
            end = max((h.offset + h.spec.size for h in table.handles), default=0)
            self.layout = Layout({h.spec.id: h.offset for h in table.handles}, end)

    # ---- the sealed table -------------------------------------------------------------------------------------

    def seal(self, about: ProcessFacts) -> SealedTable:
        """Returns the sealed table. Raises WrongState for a copy that lacks bytes that a restore needs."""
        with self.lock:
            if self.snapshot and self.snapshot.later:
                raise WrongState("a part of the copy is on the device still: it is for an image alone")
            lacking = [i for i, where in self.seal_for_image(about).chunks.items() if Where.PARENT in where]
            if lacking and not (self.parent and self.parent.whole):
                raise WrongState(f"the copy has not all of {len(lacking)} allocations: it is for an image alone")
            return self._table(about)

    def seal_for_image(self, about: ProcessFacts) -> PartialTable:
        """Returns the table of the copy at the cut. Raises WrongState where a live copy has none."""
        with self.lock:
            table = self._table(about)
            if self.live is None:
                return PartialTable.whole(table)
            if self.live.cut is None:
                raise WrongState("what was copied while the program ran is of no cut")
            return PartialTable(table, self.live.cut)

    def _table(self, about: ProcessFacts) -> SealedTable:
        with self.lock:
            offsets = self.planned.offsets
            assert self.segments is not None or self.ring
            return SealedTable(
                job=about.job,
                pid=about.pid,
                start_time=about.start_time,
                transaction=about.transaction,
                ordinals=about.ordinals,
                handles=tuple(SealedHandle(self.specs[i], self.device, at) for i, at in offsets.items()),
                mappings=tuple(MappingRecord(*row) for row in about.mappings if row[0] in offsets),
                segments=tuple(SealedSegment(self.device, part.size) for part in self.segments or ()),
            )
