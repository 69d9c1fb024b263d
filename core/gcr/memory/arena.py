"""The arena, pinned host memory of one worker, in memfd segments that other processes can take by descriptor.

Filling and pinning fresh memory is slow, so it happens in the background (`prepare`) and pinned segments are kept. A
segment is filled by fallocate: a lack of memory is then an error here, and no signal at a later access. Several files
fill in parallel as fast as huge pages (one file is limited by its lock). A segment is sealed against shrinking, since
another holder of its descriptor could otherwise make the worker's access a SIGBUS. gcr.memory.making makes segments.

A segment that has held one owner's bytes is never shown to another owner. It is released once its owner has ended, or
where another owner needs the room, and a fresh one is made. The arena does not take a segment that another process
still reads, an image's writer for instance (`memfiles.hold_still`).

A call that cannot wait is promised the segments that are lacking (`promise`). They are filled and pinned later
(`keep`); their descriptors can be handed on before.

Segments that come from elsewhere (`adopt`) are not pinned: a refill from them is faster through slots (`take_slots`).
They are pinned once their owner is to take them again, by `prepare`, or by `take` at the latest.

`_turns` is held while memory is made, filled and pinned, `_lock` only while the books are changed; in that order.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock

from msgspec import Struct

from gcr import units
from gcr.errors import NoRoom, RolledBack
from gcr.memory.addresses import round_up
from gcr.memory.choosing import Missing, choose, total
from gcr.memory.hostmemory import available_host_bytes
from gcr.memory.layout import Segment
from gcr.memory.ledger import Ledger, shortfalls
from gcr.memory.making import Maker
from gcr.memory.memfiles import NO_MEMORY, NotASegment, is_held_still
from gcr.memory.turns import Turns

__all__ = ["Arena", "NotASegment", "Segment", "Segments", "available_host_bytes"]

LEAST_PIECE = 256 << 20  # a segment is not made smaller only to have more of them
PIECES_EACH = 4  # of a thread, if they are not too small: some are pinned while others are filled


class Segments(Struct, frozen=True):
    """Segments that belong to one owner, in order. `size` is what they hold, at least what was asked for."""

    owner: str
    parts: tuple[Segment, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def just_hold(self, nbytes: int) -> bool:
        """Tells whether they hold so many bytes, and would not without the last one."""
        return bool(self.parts) and self.size - self.parts[-1].size < nbytes <= self.size

    @property
    def fds(self) -> list[int]:
        """The descriptors, in order. They stay the arena's; sending them duplicates them."""
        return [part.fd for part in self.parts]

    def may_be_written(self) -> bool:
        """Tells whether no process reads these segments."""
        return not any(is_held_still(part.fd) for part in self.parts)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.parts)


class Arena:
    """The arena of one worker. `pin(address, size)` and `unpin(address)` are called from several threads at once.

    segment_bytes: the largest segment. limit_bytes: the limit of all segments that the arena makes, adopted ones not
    counted. threads: fill and pin in the background. hurry: the threads where a caller waits; as many by default.
    """

    def __init__(
        self,
        pin: Callable[[int, int], None],
        unpin: Callable[[int], None],
        *,
        segment_bytes: int,
        limit_bytes: int,
        threads: int,
        hurry: int = 0,
    ) -> None:
        self._maker = Maker(pin, unpin)
        self._segment_bytes = round_up(segment_bytes)
        self._threads = threads
        self._hurry = max(threads, hurry)
        self._lock = Lock()
        self._turns = Turns()
        self._closed = False
        self._ledger = Ledger(limit_bytes)

    @property
    def bytes(self) -> int:
        """All memory of the arena, adopted segments included."""
        with self._lock:
            return self._ledger.bytes

    @property
    def pinned_bytes(self) -> int:
        """All but what is promised, and what was adopted and not pinned since."""
        with self._lock:
            return self._ledger.bytes - total(self._ledger.promised) - total(self._ledger.unpinned)

    @property
    def free_bytes(self) -> int:
        with self._lock:
            return total(self._ledger.free)

    def prepare(self, wishes: Callable[[], Mapping[str, int]], pause: Callable[[], object] = lambda: None) -> None:
        """Makes sure that all owners can have their bytes at once. Raises NoRoom, and what `pin` raises.

        Pins what these owners had before, and makes what is missing. Works in rounds, one segment per thread. Between
        rounds a `take` gets its turn, `close` takes effect, and the wishes are asked for anew. `pause` is called before
        each round.
        """
        while True:
            pause()
            with self._turns.background():
                wanted = wishes()
                with self._lock:
                    unpinned = self._ledger.free_unpinned(wanted)
                missing = self._missing(wanted).sizes
                if self._closed or not (unpinned or missing):
                    return
                if unpinned:
                    self._keep(unpinned[: self._threads], self._threads)
                else:
                    self._grow(missing[: self._threads], wanted, self._threads)

    def take(self, owner: str, nbytes: int, beyond: bool = False) -> Segments:
        """Takes segments of at least `nbytes` in all, first those that held this owner's bytes. Raises NoRoom.

        beyond: the limit refuses nothing, only the host does.
        """
        with self._turns.next():
            with self._lock:
                missing = nbytes - total(self._ledger.usable(owner))
            if missing > 0:
                self._grow(_sizes(missing, self._segment_bytes, self._hurry), (owner,), self._hurry, beyond)
            with self._lock:
                parts = choose(self._ledger.usable(owner), self._ledger.free, nbytes)
                self._ledger.take(parts, owner)
            segments = Segments(owner, tuple(parts))
            try:
                self._keep(parts, self._hurry)
            except BaseException:
                self.give_back(segments)
                raise
        return segments

    def take_slots(self, owner: str, count: int, size: int) -> Segments:
        """Takes `count` segments of `size` bytes each: those that the owner had, and fresh ones. Raises NoRoom.

        The limit refuses nothing, only the host does. size: a multiple of a huge page
        """
        with self._turns.next():
            with self._lock:
                had = [s for s in self._ledger.usable(owner) if self._ledger.free[s] == owner and s.size == size]
            made = self._grow([size] * max(0, count - len(had)), (owner,), self._hurry, beyond=True, last=owner)
            with self._lock:
                parts = [*had[:count], *made]
                self._ledger.take(parts, owner)
        return Segments(owner, tuple(parts))

    def promise(self, owner: str, nbytes: int) -> Segments:
        """Takes segments without waiting; those that are lacking hold memory only after `keep`. Raises NoRoom.

        Works as `take` where another owner would have to give up segments.
        """
        with self._lock:
            usable = self._ledger.usable(owner)
            lacking = _sizes(max(0, nbytes - total(usable)), self._segment_bytes, self._hurry)
            if not self._closed and self._ledger.has_room(sum(lacking), available_host_bytes()):
                made = self._maker.promise(lacking)
                self._ledger.promised.update(made)
                parts = [*choose(usable, self._ledger.free, nbytes - sum(lacking)), *made]
                self._ledger.take(parts, owner)
                return Segments(owner, tuple(parts))
        return self.take(owner, nbytes)

    def keep(self, segments: Segments) -> None:
        """Fills and maps the promised segments of these, and pins them and the unpinned ones.

        Raises NoRoom, and what `pin` raises. After an error some may still be promised or unpinned.
        """
        with self._turns.next():
            if self._closed:
                raise RolledBack("the arena is closed")
            self._keep(segments, self._hurry)

    def _keep(self, segments: Iterable[Segment], threads: int) -> None:
        """Works as `keep`. A turn is held."""
        with self._lock:
            promised, unpinned = self._ledger.lacking(segments)
        if promised or unpinned:
            with _no_memory_is_no_room(total(promised)):
                self._maker.keep(promised, unpinned, threads, self._kept)

    def _kept(self, part: Segment) -> None:
        with self._lock:
            self._ledger.is_pinned(part)

    def give_back(self, segments: Segments, leave: bool = False) -> None:
        """Returns segments to the arena; the owner no longer needs the bytes. Idempotent.

        leave: it may want them again (`take_again`), and they stay while there is room
        """
        with self._lock:
            empty = self._ledger.give_back(segments.parts, segments.owner)
            if leave:
                self._ledger.leave(segments.parts)
        if empty:
            with self._turns.next():  # or they are being kept
                self._release(empty)

    def take_again(self, segments: Segments) -> bool:
        """Takes segments that were left, with their bytes. Returns False where not all of them are there still.

        Some may be unpinned: `keep` pins them.
        """
        with self._turns.next(), self._lock:
            there = self._ledger.has_left(segments.parts, segments.owner)
            if there:
                self._ledger.take(segments.parts, segments.owner)
        return there

    def hand_on(self, segments: Segments) -> None:
        """Gives segments up to another process, which has its own descriptors: they are never reused. Idempotent."""
        with self._turns.next():
            with self._lock:
                gone = self._ledger.drop(segments.parts)
                self._ledger.adopted.difference_update(gone)
            self._release(gone)

    def adopt(self, owner: str, fds: Sequence[int], sizes: Sequence[int] | None = None) -> Segments:
        """Maps segments that come from elsewhere, and pins none. Takes the descriptors, and closes them on failure.

        All or nothing. Raises NotASegment, NoRoom (addresses), and RolledBack where the arena is closed.
        """
        made = self._maker.adopt(fds, sizes)
        with self._lock:
            closed = self._closed
            if not closed:
                self._ledger.adopt(made, owner)
        if closed:
            self._maker.release(made, pinned=False)
            raise RolledBack("the arena is closed")
        return Segments(owner, tuple(made))

    def unpinned(self, segments: Segments) -> frozenset[Segment]:
        """Returns those of the segments that are not pinned. One may be pinned meanwhile, and none is unpinned."""
        with self._lock:
            return frozenset(segments.parts) & self._ledger.unpinned

    def end(self, owner: str) -> None:
        """Releases, in the background, the free segments that only this owner could take; the owner has ended."""
        while True:
            with self._turns.background():
                with self._lock:
                    part = next((part for part, last in self._ledger.free.items() if last == owner), None)
                    if part is None:
                        return
                    self._ledger.forget(part)
                self._release([part])

    def give_up_spare(self, wishes: Callable[[], Mapping[str, int]]) -> None:
        """Releases, in the background, fresh segments that the wishes do not need."""
        while True:
            with self._turns.background():
                spare = self._missing(wishes()).spare
                if not spare:
                    return
                with self._lock:
                    self._ledger.forget(spare[0])
                self._release(spare[:1])

    def ready(self, wishes: Mapping[str, int]) -> dict[str, int]:
        """Returns, for each owner, the bytes of its wish that are pinned, and that it has or could take now."""
        short = self._missing(wishes).short
        with self._lock:
            unpinned = {owner: total(self._ledger.free_unpinned([owner])) for owner in wishes}
        return {owner: max(0, wanted - short[owner] - unpinned[owner]) for owner, wanted in wishes.items()}

    def close(self) -> None:
        """Releases all segments, taken ones included; descriptors in other processes keep their bytes. Idempotent."""
        with self._lock:
            self._closed = True
        with self._turns.next():
            with self._lock:
                everything = self._ledger.clear()
            self._release(everything)
            self._maker.addresses.close()

    def _missing(self, wishes: Mapping[str, int]) -> Missing:
        """Returns what is to be made if each owner takes its own segments and fresh ones, as `take` does."""
        with self._lock:
            has, fresh = self._ledger.owned()
        short = shortfalls(wishes, has, fresh)
        most, threads = self._segment_bytes, self._hurry
        return Missing(short, [size for left in short.values() for size in _sizes(left, most, threads)], fresh)

    def _grow(
        self, sizes: Sequence[int], owners: Collection[str], threads: int, beyond: bool = False, last: str = ""
    ) -> Sequence[Segment]:
        """Makes free segments, all or none, and returns them. A turn is held.

        last: the owner that alone may take them; any by default
        """
        if self._closed:
            raise RolledBack("the arena is closed")
        self._make_room(sum(sizes), {"", *owners}, beyond)
        self._ledger.being_made = sum(sizes)
        try:
            with _no_memory_is_no_room(sum(sizes)):
                made = self._maker.make(sizes, threads)
            with self._lock:
                self._ledger.free.update(dict.fromkeys(made, last))
        finally:
            self._ledger.being_made = 0
        return made

    def _make_room(self, nbytes: int, spared: Collection[str], beyond: bool) -> None:
        """Releases as many free segments as needed, of owners not spared. Raises NoRoom, with none released."""
        with self._lock:
            own, (others, read) = self._ledger.own_bytes, self._ledger.releasable(spared)
            coming = nbytes + total(self._ledger.promised)
        above, lacking = own + nbytes - self._ledger.limit, coming - available_host_bytes()
        short = max(min(above, others) if beyond else above, lacking)
        if short > others:
            limit = self._ledger.limit if short > lacking else None
            raise _no_room(short - others, read, limit)
        with self._lock:
            gone = self._ledger.forget_free(short, lambda last: last not in spared)
        self._release(gone)

    def _release(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            with self._lock:
                promised, unpinned = self._ledger.lacking([segment])
                self._ledger.is_pinned(segment)
            self._maker.release([segment], pinned=not (promised or unpinned))


def _sizes(nbytes: int, most: int, threads: int) -> list[int]:
    """Returns sizes: equal ones, a few for each thread, and one for the rest. Multiples of a huge page."""
    each = min(most, max(LEAST_PIECE, round_up(-(-nbytes // (PIECES_EACH * threads)))))
    whole, rest = divmod(round_up(nbytes), each)
    return [each] * whole + ([rest] if rest else [])


@contextmanager
def _no_memory_is_no_room(nbytes: int) -> Iterator[None]:
    """Raises NoRoom where the kernel lacks memory for a call that wants `nbytes`."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_MEMORY:
            raise _no_room(nbytes) from error
        raise


def _no_room(missing: int, read: int = 0, limit: int | None = None) -> NoRoom:
    """Returns the error. read: bytes that another process still reads; limit: that of the arena, where it lacks more
    than the host does.
    """
    until = f"; {units.size(read)} are free again once the images that are being written from them are" if read else ""
    of, hint = ("", "") if limit is None else (f"gcr's limit of {units.size(limit)} of ", "raise arena_share: ")
    text = f"{of}host memory is {units.size(missing)} short{until}"
    return NoRoom(text, missing=missing, hint=f"{hint}docs/troubleshooting.md#host-memory")
