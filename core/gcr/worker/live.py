"""A live copy: what was copied while the program ran, and the hashes of what was copied.

The hash of a chunk is that of its bytes in the arena, never of what lay on the device at some other time: a chunk that
was written while it was copied has some mixture in the arena, and the mixture is what was hashed. At the cut the device
hashes what lies there then; a chunk whose hashes differ is copied again. So a chunk that was changed and changed back
is right as well, and one that differs is missed with the probability of a collision (gcr.hashing: less than 2**-121).
"""

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from gcr.drain import DeviceRange
from gcr.hashing import CHUNK_BYTES, DIGEST_BYTES, HashKey, hash_address, hash_bytes
from gcr.layout import Layout, Segment

SLICE_BYTES = 512 << 20  # copied and hashed at a time: what a free of the program may have to wait for
RUN_BYTES = 8 << 20  # hashed by one thread
BLOCK, PART = 64, 8  # digests that are compared at once


@dataclass(slots=True)
class LiveCopy:
    """`digests`: of each allocation's bytes in the arena, by id. `layout`: of all that was ever copied into it."""

    layout: Layout
    key: HashKey = field(default_factory=HashKey.random)
    digests: dict[int, bytes] = field(default_factory=dict)

    def laid_out_for(self, sizes: Mapping[int, int]) -> Layout:
        """What is left of it stays where it is, what is new goes behind."""
        offsets = {id: self.layout.offsets[id] for id in sizes if id in self.layout.offsets}
        end = self.layout.size
        for id in sizes:
            if id not in offsets:
                offsets[id] = end
                end += sizes[id]
        return Layout(offsets, end)

    def stale(self, id: int, size: int, now: bytes | None) -> Iterator[tuple[int, int]]:
        """Where an allocation is not what was copied, `now` being its digests: offset and length, neighbours as one."""
        copied = self.digests.get(id)
        if copied is None or now is None or len(copied) != len(now):
            yield 0, size
            return
        begin = end = 0
        for number in differing(copied, now):
            if number * CHUNK_BYTES != end:
                if end:
                    yield begin, end - begin
                begin = number * CHUNK_BYTES
            end = (number + 1) * CHUNK_BYTES
        if end:
            yield begin, min(end, size) - begin


def differing(one: bytes, other: bytes) -> Iterator[int]:
    """The numbers of digests that are not the same, in order. Block by block first: the program stands still."""
    block, part = BLOCK * DIGEST_BYTES, PART * DIGEST_BYTES
    for start in range(0, len(one), block):
        if one[start : start + block] == other[start : start + block]:
            continue
        for at in range(start, min(start + block, len(one)), part):
            ours, theirs = one[at : at + part], other[at : at + part]
            if ours != theirs:
                for inner in range(0, len(ours), DIGEST_BYTES):
                    if ours[inner : inner + DIGEST_BYTES] != theirs[inner : inner + DIGEST_BYTES]:
                        yield (at + inner) // DIGEST_BYTES


def slices(ids: Sequence[int], sizes: Mapping[int, int]) -> Iterator[Sequence[int]]:
    """Of at most SLICE_BYTES, but of one allocation at least."""
    part: list[int] = []
    total = 0
    for id in ids:
        if part and total + sizes[id] > SLICE_BYTES:
            yield part
            part, total = [], 0
        part.append(id)
        total += sizes[id]
    if part:
        yield part


def only(ranges: Sequence[DeviceRange], ids: Iterable[int]) -> Sequence[DeviceRange]:
    """The same ranges, as if nothing else were in them."""
    wanted = set(ids)
    kept = ({id: at for id, at in where.offsets.items() if id in wanted} for where in ranges)
    return [DeviceRange(where.address, where.size, offsets) for where, offsets in zip(ranges, kept, strict=True)]


def hashes_of(
    places: Mapping[int, tuple[int, int]], segments: Sequence[Segment], key: HashKey, pool: ThreadPoolExecutor
) -> dict[int, bytes]:
    """Of bytes in the arena: by id their arena offset and size."""
    jobs = [
        (id, [pool.submit(_hash, piece, key) for piece in _pieces(at, size, segments)])
        for id, (at, size) in places.items()
    ]
    return {id: b"".join(each.result() for each in futures) for id, futures in jobs}


def _hash(piece: Sequence[tuple[int, int]], key: HashKey) -> bytes:
    if len(piece) == 1:
        ((address, size),) = piece
        return hash_address(address, size, key, CHUNK_BYTES)
    return hash_bytes(b"".join(ctypes.string_at(address, size) for address, size in piece), key, CHUNK_BYTES)


def _pieces(at: int, size: int, segments: Sequence[Segment]) -> Iterator[Sequence[tuple[int, int]]]:
    """Whole chunks each, as addresses and sizes: more than one where a chunk goes on in the next segment."""
    for start in range(0, size, RUN_BYTES):
        length = min(RUN_BYTES, size - start)
        parts = [*_addresses(at + start, length, segments)]
        if len(parts) == 1:
            yield parts
            continue
        for chunk in range(start, start + length, CHUNK_BYTES):
            yield [*_addresses(at + chunk, min(CHUNK_BYTES, start + length - chunk), segments)]


def _addresses(at: int, size: int, segments: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    starts = accumulate((segment.size for segment in segments), initial=0)
    for segment, (first, end) in zip(segments, pairwise(starts), strict=True):
        begin, until = max(at, first), min(at + size, end)
        if begin < until:
            yield segment.address + begin - first, until - begin
