"""What a live copy says is to be copied again, against a look at each chunk; and where it puts what is new."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gcr.hashing import CHUNK_BYTES, DIGEST_BYTES
from gcr.layout import Layout
from gcr.worker.live import LiveCopy, slices


def digests(marks: list[int]) -> bytes:
    return b"".join(bytes([mark]) * DIGEST_BYTES for mark in marks)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=70), st.integers(1, CHUNK_BYTES))
def test_all_chunks_that_differ_and_no_other(pairs: list[tuple[int, int]], last: int) -> None:
    size = (len(pairs) - 1) * CHUNK_BYTES + last
    copied, now = zip(*pairs, strict=True)
    live = LiveCopy(Layout({1: 0}, size), digests={1: digests([*copied])})
    parts = list(live.stale(1, size, digests([*now])))
    wanted = {number for number, (one, other) in enumerate(pairs) if one != other}
    found: set[int] = set()
    for start, length in parts:
        assert start % CHUNK_BYTES == 0 and 0 < length <= size - start
        assert start + length == size or length % CHUNK_BYTES == 0
        found |= set(range(start // CHUNK_BYTES, -(-(start + length) // CHUNK_BYTES)))
    assert found == wanted
    assert all(one + length < other for (one, length), (other, _) in pairwise(parts))


def test_what_was_not_copied_is_copied_whole() -> None:
    live = LiveCopy(Layout({1: 0}, 100), digests={1: digests([1])})
    assert list(live.stale(2, 300, digests([1]))) == [(0, 300)]
    assert list(live.stale(1, 100, None)) == [(0, 100)]
    assert list(live.stale(1, 100, digests([1, 2]))) == [(0, 100)]


def test_what_is_left_stays_where_it_is_and_what_is_new_goes_behind() -> None:
    live = LiveCopy(Layout({1: 0, 2: 100, 3: 250}, 300))
    layout = live.laid_out_for({1: 100, 3: 50, 7: 80, 8: 20})
    assert (dict(layout.offsets), layout.size) == ({1: 0, 3: 250, 7: 300, 8: 380}, 400)


def test_slices_are_small_but_for_one_large_allocation() -> None:
    gib = 1 << 30
    sizes = {1: gib // 4, 2: gib // 4, 3: 1, 4: 3 * gib, 5: 7}
    assert [list(part) for part in slices([1, 2, 3, 4, 5], sizes)] == [[1, 2], [3], [4], [5]]
