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
        """All but what is promised."""
        with self._lock:
            return self._ledger.bytes - total(self._ledger.promised)

    @property
    def free_bytes(self) -> int:
        with self._lock:
            return total(self._ledger.free)

    def prepare(self, wishes: Callable[[], Mapping[str, int]], pause: Callable[[], object] = lambda: None) -> None:
        """Makes sure that all owners can have their bytes at once. Raises NoRoom, and what `pin` raises.

        Works in rounds, one segment per thread. Between rounds a `take` gets its turn, `close` takes effect, and the
        wishes are asked for anew. `pause` is called before each round.
        """
        while True:
            pause()
            with self._turns.background():
                wanted = wishes()
                missing = self._missing(wanted).sizes
                if not missing or self._closed:
                    return
                self._grow(missing[: self._threads], wanted, self._threads)

    def take(self, owner: str, nbytes: int, beyond: bool = False) -> Segments:
        """Takes segments of at least `nbytes` in all, first those that held this owner's bytes. Raises NoRoom.

        beyond: the limit refuses nothing, only the host does.
        """
        with self._turns.next():
            with self._lock:
                missing = nbytes - total(self._ledger.usable(owner))
            if missing > 0:
                self._grow(self._sizes(missing), (owner,), self._hurry, beyond)
            with self._lock:
                parts = choose(self._ledger.usable(owner), self._ledger.free, nbytes)
                self._ledger.take(parts, owner)
        return Segments(owner, tuple(parts))

    def promise(self, owner: str, nbytes: int) -> Segments:
        """Takes segments without waiting; those that are lacking hold memory only after `keep`. Raises NoRoom.

        Works as `take` where another owner would have to give up segments.
        """
        with self._lock:
            usable = self._ledger.usable(owner)
            lacking = self._sizes(max(0, nbytes - total(usable)))
            if not self._closed and self._ledger.has_room(sum(lacking), available_host_bytes()):
                made = self._maker.promise(lacking)
                self._ledger.promised.update(made)
                parts = [*choose(usable, self._ledger.free, nbytes - sum(lacking)), *made]
                self._ledger.take(parts, owner)
                return Segments(owner, tuple(parts))
        return self.take(owner, nbytes)

    def keep(self, segments: Segments) -> None:
        """Fills, maps and pins all promised segments of these. Raises NoRoom, and what `pin` raises.

        After an error some may still be promised.
        """
        with self._turns.next():
            if self._closed:
                raise RolledBack("the arena is closed")
            with self._lock:
                promised = [part for part in segments if part in self._ledger.promised]
            if promised:
                with _no_memory_is_no_room(sum(part.size for part in promised)):
                    self._maker.keep(promised, self._hurry, self._kept)

    def _kept(self, part: Segment) -> None:
        with self._lock:
            self._ledger.promised.discard(part)

    def give_back(self, segments: Segments) -> None:
        """Returns segments to the arena; the owner no longer needs the bytes. Idempotent."""
        with self._lock:
            empty = self._ledger.give_back(segments.parts, segments.owner)
        if empty:
            with self._turns.next():  # or they are being kept
                self._release(empty)

    def hand_on(self, segments: Segments) -> None:
        """Gives segments up to another process, which has its own descriptors: they are never reused. Idempotent."""
        with self._turns.next():
            with self._lock:
                gone = self._ledger.drop(segments.parts)
                self._ledger.adopted.difference_update(gone)
            self._release(gone)

    def adopt(
        self,
        owner: str,
        fds: Sequence[int],
        sizes: Sequence[int] | None = None,
        ready: Callable[[Segment], None] | None = None,
    ) -> Segments:
        """Maps and pins segments that come from elsewhere. Takes the descriptors, and closes them on failure.

        `ready` is called for each segment, in order, as soon as it may be copied from, while later ones are still being
        pinned. All or nothing. Raises NotASegment, NoRoom (addresses), and what `pin` or `ready` raises.
        """
        with self._turns.next():
            made = self._maker.adopt(fds, sizes, self._hurry, ready)
        with self._lock:
            self._ledger.taken.update(dict.fromkeys(made, owner))
            self._ledger.adopted.update(made)
        return Segments(owner, tuple(made))

    def fds(self, segments: Segments) -> list[int]:
        """Returns the descriptors, in order. They stay the arena's; sending them duplicates them."""
        return [part.fd for part in segments]

    def trim(self, nbytes: int) -> None:
        """Releases free segments until at most `nbytes` are left, first those that held an owner's bytes."""
        with self._turns.next():
            self._release_free(max(0, self.free_bytes - nbytes), lambda _last: True)

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
        """Returns, for each owner, the bytes of its wish that it has or could take now."""
        short = self._missing(wishes).short
        return {owner: wanted - short[owner] for owner, wanted in wishes.items()}

    def close(self) -> None:
        """Releases all segments, taken ones included; descriptors in other processes keep their bytes. Idempotent."""
        with self._lock:
            self._closed = True
        with self._turns.next():
            with self._lock:
                everything = self._ledger.clear()
            self._release(everything)
            self._maker.addresses.close()

    def may_be_written(self, segments: Segments) -> bool:
        """Tells whether no process reads these segments."""
        return not any(is_held_still(part.fd) for part in segments)

    def _missing(self, wishes: Mapping[str, int]) -> Missing:
        """Returns what is to be made if each owner takes its own segments and fresh ones, as `take` does."""
        with self._lock:
            has, fresh = self._ledger.owned()
        short = shortfalls(wishes, has, fresh)
        return Missing(short, [size for left in short.values() for size in self._sizes(left)], fresh)

    def _sizes(self, nbytes: int) -> list[int]:
        """Returns sizes: equal ones, a few for each thread, and one for the rest. Multiples of a huge page."""
        each = min(self._segment_bytes, max(LEAST_PIECE, round_up(-(-nbytes // (PIECES_EACH * self._hurry)))))
        whole, rest = divmod(round_up(nbytes), each)
        return [each] * whole + ([rest] if rest else [])

    def _grow(self, sizes: Sequence[int], owners: Collection[str], threads: int, beyond: bool = False) -> None:
        """Makes fresh free segments, all or none. A turn is held."""
        if self._closed:
            raise RolledBack("the arena is closed")
        self._make_room(sum(sizes), {"", *owners}, beyond)
        self._ledger.being_made = sum(sizes)
        try:
            with _no_memory_is_no_room(sum(sizes)):
                made = self._maker.make(sizes, threads)
            with self._lock:
                self._ledger.free.update(dict.fromkeys(made, ""))
        finally:
            self._ledger.being_made = 0

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
        self._release_free(short, lambda last: last not in spared)

    def _release_free(self, nbytes: int, which: Callable[[str], bool]) -> None:
        with self._lock:
            gone = self._ledger.forget_free(nbytes, which)
        self._release(gone)

    def _release(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            with self._lock:
                promised = segment in self._ledger.promised
                self._ledger.promised.discard(segment)
            self._maker.release([segment], pinned=not promised)


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
