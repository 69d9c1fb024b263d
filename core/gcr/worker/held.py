"""Device memory of one process, held by a worker."""

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from threading import RLock

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.drain import Ballast, DataDrain, DeviceRange, Handed, HandleSpec
from gcr.errors import NoDescriptors, RolledBack, WrongState
from gcr.memory.escrow import duplicate
from gcr.protocol.seqpacket import close_all
from gcr.worker.attachment import Attachment
from gcr.worker.inflight import InFlight
from gcr.worker.residence import Residence

log = logging.getLogger("gcr.worker")


class HeldMemory(Struct):
    """The memory of one process, and the transfers in flight from or to it.

    owner: the process in the arena; no later process has this name · name: the process in messages
    A copy does not hold the lock while it waits for its transfers, so that handles can be exported meanwhile. A call
    that unmaps waits for the transfers in flight first.
    """

    attachment: Attachment
    owner: str = ""
    name: str = ""
    specs: dict[int, HandleSpec] = field(default_factory=dict)  # of each handle that is held
    ranges: list[DeviceRange] = field(default_factory=list)
    ballast: Ballast | None = None
    ballast_bytes: int = 0
    lent: set[int] = field(default_factory=set)  # ids of handles that the process goes on holding
    kept: dict[int, int] = field(default_factory=dict)  # id -> descriptor: imported memory cannot be exported again
    residence: Residence | None = None  # None: the memory is not resident
    transfers: InFlight = field(default_factory=InFlight)
    lock: RLock = field(default_factory=RLock)

    @property
    def drain(self) -> DataDrain:
        """Raises NoContext."""
        return self.attachment.drain

    @property
    def bytes(self) -> int:
        """The bytes held, ballast included, without what is lent: the device counts that for the process.

        Takes no lock: a look does not wait for a copy.
        """
        sizes, lent = dict(self.specs), set(self.lent)
        handles = (i for where in list(self.ranges) for i in where.offsets if i not in lent)
        return self.ballast_bytes + sum(sizes[i].size for i in handles if i in sizes)

    @property
    def sizes(self) -> dict[int, int]:
        with self.lock:
            return {spec.id: spec.size for spec in self.specs.values()}

    def adopt(self, handed: Sequence[Handed], drain: DataDrain, lent: bool = False) -> None:
        """Takes the descriptors, and keeps a duplicate of each for the keeper after the present one.

        lent: the process goes on holding the memory, so no keeper needs a duplicate
        """
        with self.lock:
            copies = {} if lent else duplicates(handed)
            try:
                self.ranges.append(drain.adopt(handed))
            except BaseException:
                close_all(list(copies.values()))
                raise
            self.specs.update({h.spec.id: h.spec for h in handed})
            self.lent.update(h.spec.id for h in handed if lent)
            self._drop_kept(copies)
            self.kept.update(copies)

    def ids(self) -> list[int]:
        with self.lock:
            return [i for where in self.ranges for i in where.offsets]

    def forget(self, ids: Sequence[int]) -> None:
        """Releases handles, and every range of which none is left."""
        with self.lock:
            self.transfers.finish()
            for where in [*self.ranges]:
                self._forget_some([i for i in ids if i in where.offsets], where)
            for i in ids:
                self.specs.pop(i, None)
            self.lent.difference_update(ids)
            self.filled.difference_update(ids)
            self._drop_kept(ids)

    def _forget_some(self, ids: Sequence[int], where: DeviceRange) -> None:
        left = {i: at for i, at in where.offsets.items() if i not in ids}
        index = self.ranges.index(where)
        if left and ids:
            self.drain.forget(where, ids)
            self.ranges[index] = replace(where, offsets=left)
        elif not left:  # a training that is saved each step would fill the address space with empty ranges
            self.ranges.pop(index)
            self.drain.release(where)

    def _drop_kept(self, ids: Iterable[int]) -> None:
        close_all([self.kept.pop(i) for i in list(ids) if i in self.kept])

    def create(self, specs: Sequence[HandleSpec], ballast: int) -> None:
        """Makes physical memory for these handles, in this order, and ballast.

        Raises WrongState where memory is held already, and NoRoom; none is kept then.
        """
        with self.lock:
            if self.ranges:
                raise WrongState("this memory exists already")
            self.specs = {}
            made = self.make(specs) if specs else None
            try:
                self._take_ballast(ballast)
            except BaseException:
                if made:
                    self.forget([*made.offsets])
                raise

    # ---- resident memory ----------------------------------------------------------------------------------------

    @property
    def evictable_bytes(self) -> int:
        """The bytes that an eviction would release. Takes no lock: a look does not wait for a copy."""
        residence = self.residence
        return self.bytes - self.ballast_bytes if residence and not residence.claimed else 0

    def stay(self, copy: int, ids: Collection[int]) -> int:
        """Makes the memory resident, all of which a copy has. Returns its bytes; the ballast is released.

        ids: of the handles that the copy has. Raises WrongState where these are others than are held.
        """
        with self.lock:
            if {*ids} != {*self.ids()}:
                raise WrongState("the copy has not all of what is held: the memory cannot stay")
            self.transfers.finish()
            self.drop_ballast()
            self.residence = Residence(copy, {*ids})
            return self.bytes

    @property
    def filled(self) -> set[int]:
        """The ids of handles that need no refill: they are, or were, resident."""
        return self.residence.filled if self.residence else set()

    def make(self, specs: Sequence[HandleSpec]) -> DeviceRange:
        """Makes physical memory for these handles, in this order, beside what is held. Raises NoRoom."""
        made = self.drain.create(specs)
        self.specs.update({spec.id: spec for spec in specs})
        self.ranges.append(made)
        return made

    def claim(self, copy: int, specs: Sequence[HandleSpec], ballast: int) -> int | None:
        """Takes resident memory for a restore of these handles, and makes ballast and the rest.

        Returns the bytes that need no refill; None where nothing is resident, after a release of what is resident
        beside another copy. Raises NoRoom; what was resident is so still.
        """
        with self.lock:
            held = {*self.ids()}
            if self.residence and (self.residence.copy != copy or not held <= {spec.id for spec in specs}):
                self.release()
            if (residence := self.residence) is None:
                return None
            residence.claimed = True
            try:
                self.hold_ballast(ballast)
                if lacking := [spec for spec in specs if spec.id not in held]:
                    self.make(lacking)
            except BaseException:
                self.uncreate()
                raise
            return sum(spec.size for spec in specs if spec.id in residence.filled)

    def uncreate(self) -> None:
        """Takes back what a restore took or made: what was resident is so again, all else is released."""
        with self.lock:
            if (residence := self.residence) is None:
                self.release()
                return
            self.drop_ballast()
            residence.claimed = False
            self.drop_unfilled()

    def drop_unfilled(self) -> None:
        """Releases what is held and not resident yet; waits for transfers in flight."""
        with self.lock:
            self.forget([i for i in self.ids() if i not in self.filled])
            if not self.ranges:
                self.residence = None

    def evict(self) -> int:
        """Releases the memory if it is resident and no restore has claimed it; ballast stays. Returns its bytes."""
        with self.lock:
            size = self.evictable_bytes
            if size:
                self._release_memory()
            return size

    def copy_ended(self, copy: int) -> None:
        """Ends the residence beside a copy: the process runs with the memory, or it is released."""
        if self.residence is None or self.residence.copy != copy:  # the end of another copy does not wait for the lock
            return
        with self.lock:
            if self.residence and self.residence.copy == copy:
                if not self.residence.claimed:
                    self.release()
                self.residence = None

    # ---- descriptors --------------------------------------------------------------------------------------------

    def export(self, ids: Sequence[int]) -> list[int]:
        """Returns descriptors, in the order of `ids`; the caller closes them."""
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
        """Exports adopted handles as duplicates of their descriptors, all others by the driver."""
        found.update({i: os.dup(self.kept[i]) for i in ids if i in self.kept})
        if rest := [i for i in ids if i not in self.kept]:
            found.update({h.spec.id: h.fd for h in self.drain.export(where, rest)})

    def hold_ballast(self, nbytes: int) -> None:
        """Occupies room that the driver gave back, until `drop_ballast`. Raises NoRoom."""
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
        """Releases all memory, and the ballast. Waits for transfers in flight."""
        with self.lock:
            self.drop_ballast()
            self._release_memory()

    def _release_memory(self) -> None:
        """Releases the memory. The residence ends last, so that an eviction meanwhile waits until the room is free."""
        self.filled.clear()  # where a release fails, the rest is resident still, and no byte of it counts
        self.transfers.finish()
        while self.ranges:
            self.drain.release(self.ranges[-1])
            self.ranges.pop()
        self.specs.clear()
        self.lent.clear()
        self._drop_kept(list(self.kept))
        self.residence = None


def duplicates(handed: Sequence[Handed]) -> dict[int, int]:
    """Returns duplicates by id, or none where descriptors are lacking: those of the keeper suffice."""
    try:
        return dict(zip((h.spec.id for h in handed), duplicate([h.fd for h in handed]), strict=True))
    except NoDescriptors as error:
        log.warning("no duplicates of %d handles kept: %s", len(handed), error)
        return {}
