"""The arena: pinned host memory of one worker, in memfd segments that can be handed to other processes.

Filling and pinning fresh memory is slow, so it happens in the background (`prepare`) and pinned segments are kept. A
segment is filled by fallocate: running out of memory is then an error here and not a signal at some later access; and
several files fill in parallel as fast as huge pages (one file is limited by its lock). It is sealed against shrinking,
since whoever else holds its descriptor could otherwise make our access to it a SIGBUS.

What one owner's bytes have been in is never shown to another: such a segment is released and a fresh one made. Nor is
one taken that somebody still reads, an image's writer say (`memfiles.hold_still`).

Who cannot wait is promised what is lacking (`promise`): it is filled and pinned later (`keep`), its descriptors can be
handed on before.

`_turns` is held while memory is made, filled and pinned, `_lock` only while the books are changed; in that order.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

from gcr import hostmap, units
from gcr.errors import NoRoom, RolledBack
from gcr.hostmemory import available_host_bytes
from gcr.layout import Segment
from gcr.memfiles import (
    NO_MEMORY,
    NotASegment,
    Places,
    checked_size,
    fill,
    filled_memfd,
    is_held_still,
    promised_memfd,
    round_up,
)
from gcr.turns import Turns

__all__ = ["Arena", "NotASegment", "Segment", "Segments", "available_host_bytes"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments that belong to one owner, in order. `size` is what they hold, at least what was asked for."""

    owner: str
    parts: tuple[Segment, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.parts)


class Arena:
    """See the module. `pin(address, size)` and `unpin(address)` are called from several threads at once.

    segment_bytes: the largest segment. limit_bytes: of all that the arena makes, adopted segments not counted.
    """

    def __init__(
        self,
        pin: Callable[[int, int], None],
        unpin: Callable[[int], None],
        *,
        segment_bytes: int,
        limit_bytes: int,
        threads: int,
    ) -> None:
        self._pin = pin
        self._unpin = unpin
        self._segment_bytes = round_up(segment_bytes)
        self._limit = limit_bytes
        self._threads = threads
        self._places = Places(self._segment_bytes, 4 * limit_bytes)
        self._lock = Lock()
        self._turns = Turns()
        self._closed = False
        self._free: dict[Segment, str] = {}  # with the owner whose bytes it last held; "" for a fresh one
        self._taken: dict[Segment, str] = {}
        self._adopted: set[Segment] = set()
        self._promised: set[Segment] = set()  # not filled, mapped or pinned; of those that are taken
        self._being_made = 0  # bytes

    @property
    def bytes(self) -> int:
        """All memory of the arena, adopted segments included."""
        with self._lock:
            return _total(self._free) + _total(self._taken)

    @property
    def pinned_bytes(self) -> int:
        """All but what is promised."""
        with self._lock:
            return _total(self._free) + _total(self._taken) - _total(self._promised)

    @property
    def free_bytes(self) -> int:
        with self._lock:
            return _total(self._free)

    def prepare(self, wishes: Callable[[], Mapping[str, int]]) -> None:
        """Make sure that all owners could have their bytes at once. Raises NoRoom, and what `pin` raises.

        Made in rounds, one segment per thread; between rounds a `take` gets its turn, `close` its way, and the wishes
        are asked for anew.
        """
        while True:
            with self._turns.background():
                wanted = wishes()
                missing = self._missing(wanted)
                if not missing or self._closed:
                    return
                self._grow(missing[: self._threads], wanted)

    def take(self, owner: str, nbytes: int, beyond: bool = False) -> Segments:
        """Segments of at least `nbytes` in all, those first that held this owner's bytes before. Raises NoRoom.

        beyond: the limit refuses nothing, only the host does.
        """
        with self._turns.next():
            missing = nbytes - self._usable_bytes(owner)
            if missing > 0:
                self._grow(self._sizes(missing), (owner,), beyond)
            with self._lock:
                parts = _choose(self._usable(owner), self._free, nbytes)
                for part in parts:
                    del self._free[part]
                    self._taken[part] = owner
        return Segments(owner, tuple(parts))

    def promise(self, owner: str, nbytes: int) -> Segments:
        """As `take`, but what is lacking is there once it was kept, and waits for nobody. Raises NoRoom.

        Where somebody would have to give up theirs for it, it is taken.
        """
        with self._lock:
            usable = self._usable(owner)
            lacking = self._sizes(max(0, nbytes - _total(usable)))
            if not self._closed and self._has_room(sum(lacking)):
                made = self._promise(lacking)
                parts = [*_choose(usable, self._free, nbytes - sum(lacking)), *made]
                for part in parts:
                    self._free.pop(part, None)
                    self._taken[part] = owner
                return Segments(owner, tuple(parts))
        return self.take(owner, nbytes)

    def keep(self, segments: Segments) -> None:
        """What was promised of them is filled, mapped and pinned when this returns, or an error says that not all is.

        Raises NoRoom, and what `pin` raises.
        """
        with self._turns.next():
            if self._closed:
                raise RolledBack("the arena is closed")
            with self._lock:
                promised = [part for part in segments if part in self._promised]
            if not promised:
                return
            with ThreadPoolExecutor(self._threads) as pool:
                jobs = [pool.submit(self._keep, part) for part in promised]
            try:
                for job in jobs:
                    job.result()
            except OSError as error:
                if error.errno in NO_MEMORY:
                    raise _no_room(self.bytes - self.pinned_bytes) from error
                raise

    def give_back(self, segments: Segments) -> None:
        """The owner's bytes are no longer needed. Idempotent."""
        with self._lock:
            gone = [part for part in segments if self._taken.pop(part, None) is not None]
            empty = [part for part in gone if part in self._promised]
            for part in gone:
                if part not in empty:
                    self._free[part] = segments.owner
                    self._adopted.discard(part)  # part of the pool, and of its limit, from now on
        if empty:
            with self._turns.next():  # or they are being kept
                self._release(empty)

    def hand_on(self, segments: Segments) -> None:
        """Somebody else uses them from now on, by descriptors of their own: they are never taken again. Idempotent."""
        with self._turns.next():
            with self._lock:
                gone = [part for part in segments if self._taken.pop(part, None) is not None]
                self._adopted.difference_update(gone)
            self._release(gone)

    def adopt(
        self,
        owner: str,
        fds: Sequence[int],
        sizes: Sequence[int] | None = None,
        ready: Callable[[Segment], None] | None = None,
    ) -> Segments:
        """Map and pin segments that come from elsewhere; takes the descriptors, which are closed on failure.

        `ready` is called for each segment, in order, as soon as it may be copied from, while later ones are still being
        pinned. All or nothing. Raises NotASegment, NoRoom (addresses), and what `pin` or `ready` raises.
        """
        made: list[Segment] = []
        try:
            checked = [checked_size(fd, None if sizes is None else sizes[index]) for index, fd in enumerate(fds)]
            with self._turns.next(), ThreadPoolExecutor(self._threads) as pool:
                jobs = [pool.submit(self._map, fd, size) for fd, size in zip(fds, checked, strict=True)]
                self._collect(jobs, made, ready)
        except BaseException:
            _close_quietly(set(fds) - {segment.fd for segment in made})
            self._release(made)
            raise
        with self._lock:
            self._taken.update(dict.fromkeys(made, owner))
            self._adopted.update(made)
        return Segments(owner, tuple(made))

    def fds(self, segments: Segments) -> list[int]:
        """The descriptors, in order. They stay the arena's; sending them duplicates them."""
        return [part.fd for part in segments]

    def trim(self, nbytes: int) -> None:
        """Release free segments until at most `nbytes` of them are left, those that held somebody's bytes first."""
        with self._turns.next():
            self._release_free(max(0, self.free_bytes - nbytes), lambda _last: True)

    def close(self) -> None:
        """Release everything, taken segments included: their descriptors elsewhere keep their bytes. Idempotent."""
        with self._lock:
            self._closed = True
        with self._turns.next():
            with self._lock:
                everything = [*self._free, *self._taken]
                self._free.clear()
                self._taken.clear()
                self._adopted.clear()
            self._release(everything)
            self._places.close()

    def may_be_written(self, segments: Segments) -> bool:
        """Whether nobody reads them."""
        return not any(is_held_still(part.fd) for part in segments)

    def _has_room(self, nbytes: int) -> bool:
        """For so much more, with nobody giving up theirs. The lock is held."""
        coming = self._being_made + nbytes
        return self._own_bytes() + coming <= self._limit and _total(self._promised) + coming <= available_host_bytes()

    def _own_bytes(self) -> int:
        """What the limit is of. The lock is held."""
        return _total(s for s in (*self._free, *self._taken) if s not in self._adopted)

    def _promise(self, sizes: Sequence[int]) -> list[Segment]:
        """All or none. The lock is held. Raises NoRoom, OSError."""
        made: list[Segment] = []
        try:
            for size in sizes:
                fd = promised_memfd(size)
                try:
                    made.append(Segment(fd, self._places.take(size), size))
                except BaseException:
                    os.close(fd)
                    raise
        except BaseException:
            for part in made:
                self._drop(part)
            raise
        self._promised.update(made)
        return made

    def _keep(self, part: Segment) -> None:
        fill(part.fd, part.size)
        hostmap.map_shared(part.address, part.size, part.fd)
        self._pin(part.address, part.size)
        with self._lock:
            self._promised.discard(part)

    def _usable(self, owner: str) -> list[Segment]:
        """What it may take. The lock is held."""
        return [s for s, last in self._free.items() if last == "" or (last == owner and not is_held_still(s.fd))]

    def _usable_bytes(self, owner: str) -> int:
        with self._lock:
            return _total(self._usable(owner))

    def _missing(self, wishes: Mapping[str, int]) -> list[int]:
        """Sizes of segments to be made, should every owner take what it has and of what is fresh, as `take` would."""
        with self._lock:
            has = Counter[str]()
            for part, owner in (*self._free.items(), *self._taken.items()):
                has[owner] += part.size
            fresh = sorted((part.size for part, last in self._free.items() if last == ""), reverse=True)
        sizes: list[int] = []
        for owner, wanted in wishes.items():
            left = wanted - has[owner]
            for size in [*fresh]:
                if size <= left:
                    fresh.remove(size)
                    left -= size
            if left > 0 and fresh:
                left -= fresh.pop()
            sizes += self._sizes(max(0, left))
        return sizes

    def _sizes(self, nbytes: int) -> list[int]:
        """Whole segments and a last one for the rest, a multiple of a huge page."""
        whole, rest = divmod(round_up(nbytes), self._segment_bytes)
        return [self._segment_bytes] * whole + ([rest] if rest else [])

    def _grow(self, sizes: Sequence[int], owners: Collection[str], beyond: bool = False) -> None:
        """Make fresh free segments, all or none. A turn is held."""
        if self._closed:
            raise RolledBack("the arena is closed")
        self._make_room(sum(sizes), {"", *owners}, beyond)
        self._being_made = sum(sizes)
        try:
            made = self._made(sizes)
            with self._lock:
                self._free.update(dict.fromkeys(made, ""))
        finally:
            self._being_made = 0

    def _made(self, sizes: Sequence[int]) -> list[Segment]:
        """All or none."""
        made: list[Segment] = []
        try:
            with ThreadPoolExecutor(self._threads) as pool:
                self._collect([pool.submit(self._make, size) for size in sizes], made, None)
        except OSError as error:
            self._release(made)
            if error.errno in NO_MEMORY:
                raise _no_room(sum(sizes) - _total(made)) from error
            raise
        except BaseException:
            self._release(made)
            raise
        return made

    def _make_room(self, nbytes: int, spared: Collection[str], beyond: bool) -> None:
        """Give up free segments nobody else may see, as far as needed. Raises NoRoom before anything is made."""
        with self._lock:
            own = self._own_bytes()
            read = {s for s, last in self._free.items() if last and is_held_still(s.fd)}
            others = _total(s for s, last in self._free.items() if last not in spared and s not in read)
            coming = nbytes + _total(self._promised)
        above, lacking = own + nbytes - self._limit, coming - available_host_bytes()
        short = max(min(above, others) if beyond else above, lacking)
        if short > others:
            raise _no_room(short - others, read=_total(read))
        self._release_free(short, lambda last: last not in spared)

    def _release_free(self, nbytes: int, which: Callable[[str], bool]) -> None:
        with self._lock:
            gone: list[Segment] = []
            for part in sorted(self._free, key=lambda s: self._free[s] == ""):
                if which(self._free[part]) and _total(gone) < nbytes and not is_held_still(part.fd):
                    gone.append(part)
            for part in gone:
                del self._free[part]
                self._adopted.discard(part)
        self._release(gone)

    def _collect(
        self, jobs: Sequence["Future[Segment]"], made: list[Segment], ready: Callable[[Segment], None] | None
    ) -> None:
        """Append what the jobs make to `made`, in order; on failure whatever still comes, too, before it raises."""
        try:
            for job in jobs:
                made.append(job.result())
                if ready:
                    ready(made[-1])
        except BaseException:
            late = jobs[len(made) :]
            made += [job.result() for job in late if not job.cancel() and job.exception() is None]
            raise

    def _make(self, size: int) -> Segment:
        fd = filled_memfd(size)
        try:
            return self._map(fd, size)
        except BaseException:
            os.close(fd)
            raise

    def _map(self, fd: int, size: int) -> Segment:
        address = self._places.take(size)
        try:
            hostmap.map_shared(address, size, fd)
            self._pin(address, size)
        except BaseException:
            self._places.give_back(address, size)
            raise
        return Segment(fd, address, size)

    def _release(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            with self._lock:
                promised = segment in self._promised
                self._promised.discard(segment)
            try:
                if not promised:
                    self._unpin(segment.address)
            except Exception:  # the context may be gone, and the pinning with it; the memory must go all the same
                log.exception("unpinning %d bytes failed", segment.size)
            self._drop(segment)

    def _drop(self, segment: Segment) -> None:
        self._places.give_back(segment.address, segment.size)
        os.close(segment.fd)


def _choose(candidates: Sequence[Segment], last: "dict[Segment, str]", nbytes: int) -> list[Segment]:
    """Segments of `nbytes` in all: used before fresh, large before small, the last one no larger than needed."""
    order = sorted(candidates, key=lambda s: (last[s] == "", -s.size))
    chosen: list[Segment] = []
    left = nbytes
    for part in order:
        if 0 < part.size <= left:
            chosen.append(part)
            left -= part.size
    if left > 0:
        chosen.append(min((s for s in order if s not in chosen), key=lambda s: s.size))
    return chosen


def _close_quietly(fds: Iterable[int]) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def _total(segments: Iterable[Segment]) -> int:
    return sum(segment.size for segment in segments)


def _no_room(missing: int, read: int = 0) -> NoRoom:
    until = f"; {units.size(read)} are free again once the images that are being written from them are" if read else ""
    text = f"host memory is {units.size(missing)} short{until}"
    return NoRoom(text, missing=missing, hint="docs/troubleshooting.md#host-memory")
