"""The chunks that a live copy copies again, against a look at each chunk; and the place of new ones."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.hashing import CHUNK_BYTES, DIGEST_BYTES, HashKey
from gcr.hashing.baseline import Baseline
from gcr.memory.layout import Layout
from gcr.memory.partial import Where
from gcr.worker.live import NOTHING, LiveCopy, all_differ, differing, slices

KEY = HashKey(bytes(32))
PARENT, HERE = int(Where.PARENT), int(Where.HERE)
Marks = st.integers(0, 2)


def digests(marks: list[int]) -> bytes:
    return b"".join(bytes([mark]) * DIGEST_BYTES for mark in marks)


def begun(size: int, parents: list[int] | None) -> LiveCopy:
    """Returns a live copy of one allocation; a parent may have it."""
    known = {} if parents is None else {1: (size, digests(parents))}
    live = LiveCopy(Layout({1: 0}, size), Baseline(KEY, known))
    live.begin({1: size})
    return live


@given(
    chunks=st.lists(st.tuples(Marks, st.none() | Marks, Marks), min_size=1, max_size=300),
    last=st.integers(1, CHUNK_BYTES),
    has_parent=st.booleans(),
)
def test_what_is_neither_in_the_arena_nor_in_the_parent_is_copied_and_nothing_else(
    chunks: list[tuple[int, int | None, int]], last: int, has_parent: bool
) -> None:
    """Takes for each chunk its content in the parent, in the live copy if there is one, and at the cut."""
    size = (len(chunks) - 1) * CHUNK_BYTES + last
    live = begun(size, [parent for parent, _, _ in chunks] if has_parent else None)
    for number, (_, copied, _) in enumerate(chunks):
        if copied is not None:
            live.copied(1, size, number * CHUNK_BYTES, digests([copied]))
    where, parts = live.stale(1, size, digests([now for _, _, now in chunks]))
    found: set[int] = set()
    for start, length in parts:
        assert start % CHUNK_BYTES == 0 and 0 < length <= size - start
        assert start + length == size or length % CHUNK_BYTES == 0
        found |= set(range(start // CHUNK_BYTES, -(-(start + length) // CHUNK_BYTES)))
    assert all(one + length < other for (one, length), (other, _) in pairwise(parts))
    for number, (parent, copied, now) in enumerate(chunks):
        in_arena, in_parent = copied == now, has_parent and parent == now
        assert (number in found) == (not in_arena and not in_parent)
        assert where[number] == (PARENT if in_parent else HERE)


@given(marks=st.lists(st.tuples(Marks, Marks), max_size=600))
def test_what_differs_is_found_in_order(marks: list[tuple[int, int]]) -> None:
    one, other = digests([a for a, _ in marks]), digests([b for _, b in marks])
    runs = [*differing(one, other)]
    assert [n for first, after in runs for n in range(first, after)] == [n for n, (a, b) in enumerate(marks) if a != b]
    assert all_differ(one, other) <= all(a != b for a, b in marks)


def test_digests_of_which_none_is_the_same_are_looked_at_once() -> None:
    one, other = digests([1] * 1000), digests([2] * 1000)
    assert all_differ(one, other)
    assert len([*differing(one, other)]) <= 1000 / 64 + 1


def test_what_was_not_there_before_is_copied_whole() -> None:
    live = begun(100, [1])
    assert live.stale(2, 300, digests([1])) == (bytes([HERE]), [(0, 300)])
    assert live.stale(1, 100, None) == (bytes([HERE]), [(0, 100)])
    assert live.stale(1, 100, digests([1, 2])) == (bytes([HERE]), [(0, 100)])


def test_an_allocation_of_another_size_is_another_one() -> None:
    live = LiveCopy(Layout({1: 0}, 100), Baseline(KEY, {1: (200, digests([1]))}))
    live.begin({1: 100})
    assert live.stale(1, 100, digests([1])) == (bytes([HERE]), [(0, 100)])


def test_no_chunk_has_the_digest_of_nothing() -> None:
    """Each half is less than 2**61 - 1."""
    assert all(int.from_bytes(NOTHING[at : at + 8], "little") >= (1 << 61) - 1 for at in (0, 8))


def test_hashes_are_compared_by_the_key_of_the_parent() -> None:
    assert begun(100, [1]).key == KEY
    assert LiveCopy(Layout({}, 0)).key != LiveCopy(Layout({}, 0)).key


def test_what_is_left_stays_where_it_is_and_what_is_new_goes_behind() -> None:
    live = LiveCopy(Layout({1: 0, 2: 100, 3: 250}, 300))
    layout = live.laid_out_for({1: 100, 3: 50, 7: 80, 8: 20})
    assert (dict(layout.offsets), layout.size) == ({1: 0, 3: 250, 7: 300, 8: 380}, 400)


Runs = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5 * CHUNK_BYTES)), max_size=3)


@given(found=st.lists(Runs, max_size=5), chunks=st.integers(1, 4))
def test_slices_are_small_and_of_whole_chunks(found: list[list[tuple[int, int]]], chunks: int) -> None:
    wanted = {id: [(first * CHUNK_BYTES, size) for first, size in runs] for id, runs in enumerate(found)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gcr.worker.live.SLICE_BYTES", chunks * CHUNK_BYTES)
        made = [*slices(wanted)]
    assert all(0 < sum(size for parts in each.values() for _, size in parts) <= chunks * CHUNK_BYTES for each in made)
    assert all(start % CHUNK_BYTES == 0 for each in made for parts in each.values() for start, _ in parts)
    assert [*bytes_of(made)] == [*bytes_of([wanted])]


def bytes_of(made: Sequence[Mapping[int, Sequence[tuple[int, int]]]]) -> Iterator[tuple[int, int, int]]:
    """Id, chunk, and how much of it, in order."""
    for each in made:
        for id, parts in each.items():
            for start, size in parts:
                yield from ((id, start + at, min(CHUNK_BYTES, size - at)) for at in range(0, size, CHUNK_BYTES))
