"""Copying the device memory of a process to the arena: while the program runs, and at the cut.

The cut does not copy bytes that are the same in the arena or in the parent image (live.py). For a program that runs on
they go first to free memory of the device (snapshot.py). No lock is held while a transfer is waited for.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

from msgspec import Struct, field

from gcr.drain import DeviceRange, Span, Transfer
from gcr.errors import DeadlinePassed, DriverError, GcrError, NoRoom, RolledBack
from gcr.hashing import CHUNK_BYTES
from gcr.imageerrors import ImageFailed
from gcr.memory.layout import Layout, Segment, pack, spans, spans_of_parts
from gcr.memory.partial import Where, everywhere
from gcr.protocol.operations.operation import Done, Progress
from gcr.protocol.operations.worker import CopiedLive, Drained, Moved
from gcr.worker.guarded import copies_within, prepares_hash, read_beside
from gcr.worker.hostcopy import HostCopy
from gcr.worker.live import SLICE_BYTES, LiveCopy, Part, hashes_of, parts_of, slices
from gcr.worker.paranoid import compare
from gcr.worker.snapshot import Snapshot, divide, portions, room_for, spare_bytes
from gcr.worker.telling import Telling, wait_all

log = logging.getLogger("gcr.worker")

HASHING_THREADS = 8
COPYING_SHARE = 1 / 3  # of the time of a live copy at most: copies slow the program down

Parts = Mapping[int, Sequence[Part]]  # of allocations, by id


class AtTheCut(Struct):
    """The plan of the cut, by id: `where` each chunk is after the copy of `parts`.

    kept: parts of the arena that the hashes call right · now: the device's digests of all chunks
    """

    where: dict[int, bytes] = field(default_factory=dict)
    parts: dict[int, Sequence[Part]] = field(default_factory=dict)
    kept: dict[int, Sequence[Part]] = field(default_factory=dict)
    now: dict[int, bytes] = field(default_factory=dict)


def copy_live(copy: HostCopy, deadline: float, progress: Progress, beside: bool = True) -> CopiedLive:
    """Copies the held bytes that neither parent nor former copy has, while the program runs and may free some.

    `copy_out` is the cut. beside: the device may run kernels beside the program's; else all is copied, and the cut,
    which the program stands still for, runs the first one.
    """
    began = time.monotonic()
    if beside:
        make_ready(copy, deadline)
    with copy.lock, copy.memory.lock:
        sizes, former = copy.memory.sizes, _former_books(copy)
        live = _live_books(copy, former)
        assert copy.segments
        segments, ranges, layout = copy.segments.parts, [*copy.memory.ranges], live.layout
    known = former is not None or (_has_parent(copy) and not live.whole)
    wanted = _wanted(copy, live, sizes, ranges if beside and known else (), deadline)
    in_order = {id: wanted[id] for id in sorted(wanted, key=layout.offsets.__getitem__)}
    done, next_at, total = 0, 0.0, sum(size for parts in wanted.values() for _, size in parts)
    at_work, end = 0.0, began + deadline
    with ThreadPoolExecutor(HASHING_THREADS, "gcr-hash") as pool:
        for each in slices(in_order):
            left = at_work * (total - done) / done if done else 0.0
            time.sleep(max(0.0, min(next_at, end - 2 * left) - time.monotonic()))  # no pause is to cost the copy
            slice_at = time.monotonic()
            size, copying = _copy_slice(copy, each, live, segments, end, pool)
            at_work += time.monotonic() - slice_at
            done, next_at = done + size, slice_at + copying / COPYING_SHARE
            progress(Done(done, total))
    return CopiedLive(sum(sizes.values()), time.monotonic() - began, done)


def make_ready(copy: HostCopy, deadline: float) -> None:
    """Prepares the hash of the cut while the program runs. An error here is logged; the cut may raise it again."""
    drain = copy.memory.drain
    if prepares_hash(drain):
        try:
            drain.make_ready_to_hash(deadline)
        except (DeadlinePassed, DriverError) as error:
            log.warning("the first hash of %s is not prepared: %s", copy.memory.name, error)


def _former_books(copy: HostCopy) -> LiveCopy | None:
    """Returns the books of a former copy, unless their hashes are of another key than the image's.

    All is copied then, so that the next image can be built upon this one and on this copy. The locks are held.
    """
    return copy.live if copy.live and (copy.parent is None or copy.parent.key == copy.live.key) else None


def _has_parent(copy: HostCopy) -> bool:
    """Returns whether an image has bytes that the copy may lack. Without any it has told its key alone."""
    return copy.parent is not None and bool(copy.parent.allocations)


def _live_books(copy: HostCopy, former: LiveCopy | None) -> LiveCopy:
    """Begins the books of a live copy, with its room; those of a former copy go on. Raises NoRoom. Locks are held."""
    if former is None:
        layout = pack(copy.memory.ranges, copy.memory.sizes)
        copy.reserve(layout.size)
        live = LiveCopy(layout, copy.parent)
    else:
        layout = former.laid_out_for(copy.memory.sizes)
        copy.reserve_more(layout.size)
        live = former.begun_again(layout, former.parent)
    live.begin(copy.memory.sizes)
    copy.live = live
    return live


def _wanted(
    copy: HostCopy, live: LiveCopy, sizes: Mapping[int, int], ranges: Sequence[DeviceRange], timeout: float
) -> Parts:
    """Returns the parts that the arena lacks. `ranges`: that the device may hash; without them all is wanted."""
    if not ranges:
        return {id: [(0, size)] for id, size in sizes.items()}
    now = copy.memory.drain.hash(ranges, live.key, CHUNK_BYTES, timeout).digests
    return {id: live.stale(id, size, now.get(id))[1] for id, size in sizes.items()}


def _copy_slice(
    copy: HostCopy,
    wanted: Parts,
    live: LiveCopy,
    segments: Sequence[Segment],
    end: float,
    pool: ThreadPoolExecutor,
) -> tuple[int, float]:
    """Copies and hashes one slice. Returns the bytes, and the seconds of their copy."""
    memory = copy.memory
    with copy.lock, memory.lock:
        if copy.live is not live:
            raise RolledBack("what was being copied was given up meanwhile")
        left = {id: parts for id, parts in wanted.items() if id in memory.specs}
        plan = _plan(copy, left, live.layout.offsets, segments)
        began = time.monotonic()
        transfers = [read_beside(memory.drain, plan)] if plan else []
        copy.began(transfers)
        copy.use.reading.acquire()
    try:
        wait_all(Telling(transfers, lambda _report: None), end)
        copying = time.monotonic() - began
        flat = [(id, start, size) for id, parts in left.items() for start, size in parts]
        places = [(live.layout.offsets[id] + start, size) for id, start, size in flat]
        found = hashes_of(places, segments, live.key, pool)
    finally:
        copy.use.reading.release()  # before any lock: the end of the copy waits for it with the lock held
    copy.ended(transfers)
    with memory.lock:
        for (id, start, _), digests in zip(flat, found, strict=True):
            if id in memory.specs:
                live.copied(id, memory.specs[id].size, start, digests)
    return sum(size for _, size in places), copying


def _plan(copy: HostCopy, parts: Parts, offsets: Mapping[int, int], segments: Sequence[Segment]) -> Sequence[Span]:
    """Plans copies of parts of allocations to their places in the arena. The memory's lock is held."""
    found = [
        (where, at + start, offsets[id] + start, size)
        for where in copy.memory.ranges
        for id, at in where.offsets.items()
        for start, size in parts.get(id, ())
    ]
    return spans_of_parts(found, segments)


def copy_out(
    copy: HostCopy, deadline: float, progress: Progress, paranoid: bool = False, last: bool = False
) -> Drained:
    """Copies all bytes to the arena. `copy_on` brings those there that the snapshot has.

    paranoid: copies or compares the bytes as well that a live copy or the parent image had. Raises HashMissed.
    last: no copy follows that could read less
    """
    began, memory = time.monotonic(), copy.memory
    with copy.lock, memory.lock:
        sizes, live = memory.sizes, _books(copy)
        layout = live.laid_out_for(sizes) if live else pack(memory.ranges, sizes)
        copy.place(layout)
        copy.reserve_more(layout.size, promised=bool(copy.room_bytes))
        assert copy.segments
        segments, ranges = copy.segments.parts, [*memory.ranges]
        found = _at_the_cut(copy, live, sizes, deadline, paranoid) if live else AtTheCut()
        plan = _plan(copy, found.parts, layout.offsets, segments) if live else spans(ranges, sizes, layout, segments)
        transfers, moved = _begin(copy, plan)
    with nullcontext() if live or last else _noted(copy, layout, ranges, began + deadline):
        wait_all(Telling(transfers, progress), began + deadline)
    copy.ended(transfers)
    if live:
        compare(copy, found.kept, layout.offsets, segments, began + deadline)
        live.cut = found.where
        if copy.former:
            live.settle(found.now)
    copied, seconds = sum(span.size for span in plan), time.monotonic() - began
    if copy.former:
        copy.former.judge(copied, sum(sizes.values()))
    return Drained(sum(sizes.values()), seconds, copied, len(layout.offsets), moved)


@contextmanager
def _noted(copy: HostCopy, layout: Layout, ranges: Sequence[DeviceRange], end: float) -> Iterator[None]:
    """Has the device hash what is being copied within it, where the next copy is to read less.

    An error of the hash is logged, and the next copy reads everything.
    """
    if copy.former is None or copy.room_bytes or not copy.memory.attachment.hashes_itself():
        yield
        return
    books, hash = LiveCopy(layout, copy.parent), copy.memory.drain.hash
    began = time.monotonic()
    with ThreadPoolExecutor(1, "gcr-hash") as pool:
        hashed = pool.submit(hash, ranges, books.key, CHUNK_BYTES, max(0.0, end - began))
        yield
        copying = time.monotonic() - began
        try:
            now = hashed.result().digests
        except GcrError as error:
            log.warning("the next copy of %s reads all bytes: %s", copy.memory.name, error)
            return
        copy.memory.attachment.hashed_beside(copying, time.monotonic() - began)
    books.cut = {id: everywhere(copy.specs[id].size) for id in layout.offsets}
    books.settle(now)
    copy.live = books


def _begin(copy: HostCopy, plan: Sequence[Span]) -> tuple[Sequence[Transfer], int]:
    """Starts the transfers. Returns them, and the bytes that go to the snapshot. The locks are held."""
    snapshot, drain = copy.snapshot, copy.memory.drain
    rooms = snapshot.rooms if snapshot else []
    moves, later, rest = divide(plan, rooms[0]) if rooms else ([], [], plan)
    if snapshot:
        snapshot.later = later
    transfers = [drain.move(moves)] if moves else []
    copy.began(transfers)
    if rest:
        copy.keep_promised()
        transfers.append(drain.read(rest))
        copy.began(transfers[-1:])
    return transfers, sum(move.size for move in moves)


def make_room(copy: HostCopy, deadline: float) -> int:
    """Makes room for a snapshot, of free memory of the device. Returns its bytes. One call at a time a device.

    No lock is held meanwhile, so that a free of the program does not wait. No room is kept after the deadline.
    """
    began = time.monotonic()
    make_ready(copy, deadline)
    drain, sizes = copy.memory.drain, [*copy.memory.sizes.values()]
    if not sizes or not copies_within(drain):
        return 0
    try:
        wanted = room_for(sizes, spare_bytes(drain.memory()))
        room = drain.create(wanted) if wanted else None
    except (NoRoom, DriverError) as error:  # without a snapshot the program stands longer
        log.info("no snapshot of %s: %s", copy.memory.name, error)
        return 0
    if room is None:
        return 0
    with copy.lock:
        copy.snapshot = Snapshot([room])
        if copy.use.given_up or not copy.memory.specs or time.monotonic() > began + deadline:  # no caller would use it
            copy.give_room_back()
        return copy.room_bytes


def copy_on(copy: HostCopy, deadline: float, progress: Progress) -> Moved:
    """Copies the snapshot to the arena while the program runs, and gives its room back.

    Copies in slices, since a call that needs the room waits for the transfer in flight. Raises ImageFailed where the
    snapshot was given up before, NoRoom where host memory is lacking.
    """
    began, done = time.monotonic(), 0
    with copy.lock:
        snapshot = copy.snapshot
        if snapshot is None or not snapshot.later:  # an empty snapshot, or one without room any more
            copy.give_room_back()
            return Moved(0, 0.0)
        total = sum(span.size for span in snapshot.later)
    copy.keep_promised()
    for portion in portions(snapshot.later, SLICE_BYTES):
        with copy.lock:
            _refuse_lost(snapshot)
            transfers = [read_beside(copy.memory.drain, portion)]
            copy.use.transfers.began(transfers)  # of the room, and of no memory of the process
        wait_all(Telling(transfers, lambda _report: None), began + deadline)
        with copy.lock:
            copy.use.transfers.ended(transfers)
        done += sum(span.size for span in portion)
        progress(Done(done, total))
    with copy.lock:
        _refuse_lost(snapshot)
        copy.give_room_back()
        snapshot.later = ()  # the arena has it all
    return Moved(total, time.monotonic() - began)


def _refuse_lost(snapshot: Snapshot) -> None:
    """Raises where the snapshot was given up. The lock is held."""
    if snapshot.lost:
        raise ImageFailed("its copy was on the device, where a program needed the room", hint="try again")
    if not snapshot.rooms:
        raise RolledBack("what was being copied was given up meanwhile")


def give_up_snapshot(copy: HostCopy, end: float) -> None:
    """Frees the room of a snapshot, which another process needs. A snapshot not read until `end` is lost."""
    with copy.lock:
        snapshot = copy.snapshot
        if snapshot is None or not snapshot.later:
            copy.give_room_back()
            return
    snapshot.over.wait(max(0.0, end - time.monotonic()))
    with copy.lock:
        snapshot.lost = snapshot.lost or bool(snapshot.rooms)
        if copy.snapshot is snapshot:
            copy.give_room_back()


def _books(copy: HostCopy) -> LiveCopy | None:
    """Returns the books of a live copy, or new ones where only a parent is there. The locks are held."""
    if copy.live is None and _has_parent(copy):
        copy.live = LiveCopy(pack(copy.memory.ranges, copy.memory.sizes), copy.parent)
        copy.live.begin(copy.memory.sizes)
    return copy.live


def _at_the_cut(copy: HostCopy, live: LiveCopy, sizes: Mapping[int, int], timeout: float, paranoid: bool) -> AtTheCut:
    """Plans the cut by the device's hashes. The locks are held."""
    found = AtTheCut()
    found.now = dict(copy.memory.drain.hash(copy.memory.ranges, live.key, CHUNK_BYTES, timeout).digests)
    for id in (id for where in copy.memory.ranges for id in where.offsets):
        found.where[id], found.parts[id] = live.stale(id, sizes[id], found.now.get(id))
        if paranoid:
            _trust_nothing(found, id, sizes[id])
    return found


def _trust_nothing(found: AtTheCut, id: int, size: int) -> None:
    """Adds the parent's chunks to the copy, to compare their names, and marks the arena's for comparison."""
    where, copied = found.where[id], found.parts[id]
    fresh = {n for start, length in copied for n in range(start // CHUNK_BYTES, -(-(start + length) // CHUNK_BYTES))}
    kept = [(n, n + 1) for n, each in enumerate(where) if each == Where.HERE and n not in fresh]
    parents = [(n, n + 1) for n, each in enumerate(where) if each == Where.PARENT and n not in fresh]
    found.where[id] = where.replace(bytes([Where.PARENT]), bytes([Where.BOTH]))
    found.parts[id] = [*copied, *parts_of(parents, size)]
    found.kept[id] = [*parts_of(kept, size)]
