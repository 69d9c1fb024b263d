"""The books of a copy, chunk by chunk: whether the arena or the parent image has its bytes.

The hash of a chunk that was copied while the program ran is that of its bytes in the arena, never of the device's bytes
at another time. A chunk that was written during its copy is a mixture there, and the hash is that of the mixture. The
hash of a chunk that was not copied is that of its bytes in the parent image, with the key of that image. At the cut the
device hashes its own bytes, and a chunk is copied where the hashes differ. So a chunk that was changed and changed back
is right as well. A chunk that differs is missed with the probability of a collision (gcr.hashing: less than 2**-121).
"""

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from gcr.hashing import CHUNK_BYTES, DIGEST_BYTES, HashKey, hash_address, hash_bytes
from gcr.hashing.baseline import Baseline
from gcr.hashing.chunks import chunk_count
from gcr.memory.layout import Layout, Segment
from gcr.memory.partial import Where, everywhere
from gcr.memory.pieces import Pieces

SLICE_BYTES = 512 << 20  # copied and hashed at a time; a free of the program may wait so long
RUN_BYTES = 8 << 20  # hashed by one thread
BLOCK, PART = 64, 8  # digests that are compared at once
NOTHING = b"\xff" * DIGEST_BYTES  # no chunk has this digest: its halves are below 2**61

Part = tuple[int, int]  # of an allocation: offset and length, of whole chunks but for its last one
Run = tuple[int, int]  # of chunks: the first, and the one after the last


@dataclass(slots=True)
class LiveCopy:
    """`chunks`: a `Where` for each chunk, by allocation. `digests`: of the bytes at that place, by allocation.

    layout: of each allocation that ever had a place in the arena · cut: the place of each chunk, once there is a cut
    """

    layout: Layout
    parent: Baseline | None = None
    digests: dict[int, bytearray] = field(default_factory=dict)
    chunks: dict[int, bytearray] = field(default_factory=dict)
    cut: dict[int, bytes] | None = None
    key: HashKey = field(default_factory=HashKey.random)

    def __post_init__(self) -> None:
        self.key = self.parent.key if self.parent else self.key

    def begin(self, sizes: Mapping[int, int]) -> None:
        """Enters allocations that the books lack, with the digests of the parent; removes those that are gone."""
        for id in self.digests.keys() - sizes.keys():
            self.forget(id)
        for id, size in sizes.items():
            count, known = chunk_count(size, CHUNK_BYTES), None if self.whole else self.parents(id, size)
            if len(self.digests.get(id, b"")) == count * DIGEST_BYTES:
                continue
            self.digests[id] = bytearray(known or NOTHING * count)
            self.chunks[id] = bytearray([Where.PARENT]) * count

    @property
    def whole(self) -> bool:
        """Tells whether the arena gets every byte, and the parent only spares an image the names of chunks."""
        return self.parent is not None and self.parent.whole

    def parents(self, id: int, size: int) -> bytes | None:
        """Returns the parent's digests of an allocation; None where it has none of this size."""
        return self.parent.digests(id, size) if self.parent else None

    def copied(self, id: int, size: int, start: int, digests: bytes) -> None:
        """Enters a part of an allocation that is in the arena, with its digests; `size`: of the allocation.

        A chunk that the parent image has as well gets the parent as its place: the image needs no other copy of it.
        """
        first, count = start // CHUNK_BYTES, len(digests) // DIGEST_BYTES
        at = slice(first * DIGEST_BYTES, (first + count) * DIGEST_BYTES)
        self.digests[id][at] = digests
        where, parents = bytearray([Where.HERE]) * count, None if self.whole else self.parents(id, size)
        if parents:
            where = bytearray([Where.PARENT]) * count
            for begin, end in differing(parents[at], digests):
                where[begin:end] = bytes([Where.HERE]) * (end - begin)
        self.chunks[id][first : first + count] = where

    def forget(self, id: int) -> None:
        """Removes an allocation that the program freed."""
        self.digests.pop(id, None)
        self.chunks.pop(id, None)

    def laid_out_for(self, sizes: Mapping[int, int]) -> Layout:
        """Returns a layout: known allocations keep their places, new ones come behind."""
        offsets = {id: self.layout.offsets[id] for id in sizes if id in self.layout.offsets}
        end = self.layout.size
        for id in sizes:
            if id not in offsets:
                offsets[id] = end
                end += sizes[id]
        return Layout(offsets, end)

    def settle(self, now: Mapping[int, bytes]) -> None:
        """Makes these the books of the cut. `now`: the digests that the device had of all bytes there."""
        cut = self.cut or {}
        self.chunks = {id: bytearray(everywhere_if(each, self.whole)) for id, each in cut.items() if id in now}
        self.digests = {id: bytearray(now[id]) for id in self.chunks}

    @property
    def is_whole(self) -> bool:
        """Tells whether the arena has all bytes of the cut, each with its digest."""
        cut = self.cut
        if cut is None or cut.keys() != self.digests.keys():
            return False
        return self.whole or not any(Where.PARENT in chunks for chunks in cut.values())

    def begun_again(self, layout: Layout, parent: Baseline | None = None) -> "LiveCopy":
        """Returns the books for a later cut, of the same bytes of the arena. `layout`: of this cut.

        parent: of the same key, whole
        """
        return LiveCopy(layout, parent, digests=self.digests, chunks=self.chunks, key=self.key)

    def stale(self, id: int, size: int, now: bytes | None) -> tuple[bytes, Sequence[Part]]:
        """Returns the place of each chunk after a copy of parts, and these parts. `now`: the device's digests."""
        known = self.digests.get(id)
        if known is None or now is None or len(known) != len(now):
            return everywhere(size), [(0, size)]
        if self.whole:
            return self._unchanged(id, size, now), [*parts_of(differing(known, now), size)]
        where, parents, fresh = bytearray(self.chunks[id]), self.parents(id, size), list[Run]()
        for first, after in differing(known, now):
            at, runs = slice(first * DIGEST_BYTES, after * DIGEST_BYTES), iter([(0, after - first)])
            if parents and (after - first > 1 or parents[at] == now[at]):
                where[first:after] = bytes([Where.PARENT]) * (after - first)  # perhaps changed, and changed back
                runs = differing(parents[at], now[at])
            for begin, end in runs:
                where[first + begin : first + end] = bytes([Where.HERE]) * (end - begin)
                fresh.append((first + begin, first + end))
        return bytes(where), [*parts_of(fresh, size)]

    def _unchanged(self, id: int, size: int, now: bytes) -> bytes:
        """Returns the place of each chunk of an allocation that the arena has whole: the parent's where it has it."""
        parents = self.parents(id, size)
        if parents is None:
            return everywhere(size)
        where = bytearray([Where.PARENT]) * chunk_count(size, CHUNK_BYTES)
        for first, after in differing(parents, now):
            where[first:after] = bytes([Where.HERE]) * (after - first)
        return bytes(where)


def everywhere_if(chunks: bytes, whole: bool) -> bytes:
    """Returns the places of chunks; those of a `whole` copy are in the arena, all of them."""
    return bytes([Where.HERE]) * len(chunks) if whole else chunks


def parts_of(runs: Iterable[Run], size: int) -> Iterator[Part]:
    """Yields ascending runs of chunks as parts of an allocation of `size` bytes, neighbours as one."""
    begin = end = 0
    for first, after in runs:
        if first * CHUNK_BYTES != end:
            if end:
                yield begin, end - begin
            begin = first * CHUNK_BYTES
        end = after * CHUNK_BYTES
    if end:
        yield begin, min(end, size) - begin


def differing(one: bytes | bytearray, other: bytes) -> Iterator[Run]:
    """Yields the runs of chunks with different digests, in order.

    Compares block by block first, since the program stands still.
    """
    block, part = BLOCK * DIGEST_BYTES, PART * DIGEST_BYTES
    for start in range(0, len(one), block):
        ours, theirs = one[start : start + block], other[start : start + block]
        if ours == theirs:
            continue
        if all_differ(ours, theirs):
            yield start // DIGEST_BYTES, (start + len(ours)) // DIGEST_BYTES
            continue
        for at in range(0, len(ours), part):
            if ours[at : at + part] != theirs[at : at + part]:
                for inner in range(at, min(at + part, len(ours)), DIGEST_BYTES):
                    if ours[inner : inner + DIGEST_BYTES] != theirs[inner : inner + DIGEST_BYTES]:
                        number = (start + inner) // DIGEST_BYTES
                        yield number, number + 1


def all_differ(one: bytes | bytearray, other: bytes) -> bool:
    """Tells whether all digests differ. A False may be wrong."""
    if one[:DIGEST_BYTES] == other[:DIGEST_BYTES]:
        return False
    both = int.from_bytes(one, "little") ^ int.from_bytes(other, "little")
    return bytes(DIGEST_BYTES) not in both.to_bytes(len(other), "little")


def slices(wanted: Mapping[int, Sequence[Part]]) -> Iterator[Mapping[int, Sequence[Part]]]:
    """Yields parts of allocations in this order, SLICE_BYTES at a time, cut between two chunks."""
    begun: dict[int, list[Part]] = {}
    room = SLICE_BYTES
    for id, parts in wanted.items():
        for start, size in parts:
            at, end = start, start + size
            while at < end:
                some = min(end - at, room)
                begun.setdefault(id, []).append((at, some))
                at, room = at + some, room - chunk_count(some, CHUNK_BYTES) * CHUNK_BYTES
                if not room:
                    yield begun
                    begun, room = {}, SLICE_BYTES
    if begun:
        yield begun


def hashes_of(
    places: Sequence[Part], segments: Sequence[Segment], key: HashKey, pool: ThreadPoolExecutor
) -> Sequence[bytes]:
    """Returns the digests of stretches of the arena, each an arena offset and a size."""
    jobs = [[pool.submit(_hash, piece, key) for piece in _pieces(at, size, segments)] for at, size in places]
    return [b"".join(each.result() for each in futures) for futures in jobs]


def _hash(piece: Sequence[tuple[int, int]], key: HashKey) -> bytes:
    if len(piece) == 1:
        ((address, size),) = piece
        return hash_address(address, size, key, CHUNK_BYTES)
    return hash_bytes(b"".join(ctypes.string_at(address, size) for address, size in piece), key, CHUNK_BYTES)


def _pieces(at: int, size: int, segments: Sequence[Segment]) -> Iterator[Sequence[tuple[int, int]]]:
    """Yields pieces of whole chunks, each as addresses and sizes: several where a chunk crosses two segments."""
    for start in range(0, size, RUN_BYTES):
        length = min(RUN_BYTES, size - start)
        parts = [*addresses(at + start, length, segments)]
        if len(parts) == 1:
            yield parts
            continue
        for chunk in range(start, start + length, CHUNK_BYTES):
            yield [*addresses(at + chunk, min(CHUNK_BYTES, start + length - chunk), segments)]


def addresses(at: int, size: int, segments: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    """Returns the addresses and sizes of a stretch of the arena. Raises NotInPieces at a byte that is in no segment."""
    line = Pieces.back_to_back(segment.size for segment in segments)
    return ((segments[cut.piece].address + cut.at, cut.size) for cut in line.cuts([(at, size)]))
