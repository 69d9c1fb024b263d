"""Packed records are compared many at once, and the runs that differ are found at any border."""

import random
import struct
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from gcr.image.chunks.records import Records
from gcr.image.files.references import RECORD_BYTES, ZEROS, References, counted, renumbered

RUNS = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 70)), max_size=6)
COUNT = 270


def packed(names: Sequence[int], places: int = 0, more: bytes = b"") -> bytes:
    return b"".join(struct.pack("<28xIII", name, places, at) + more for at, name in enumerate(names))


@given(RUNS, st.integers(0, 1), st.integers(0, 66), st.integers(0, 66), st.integers(0, COUNT - 66))
@example([(63, 1), (64, 1)], 0, 0, 0, COUNT - 66)
@example([(63, 2), (127, 70)], 1, 0, 0, COUNT - 66)
@example([(0, 70), (200, 70)], 1, 0, 0, COUNT - 66)
def test_the_runs_with_other_names_are_those_of_a_look_at_each(
    runs: Sequence[tuple[int, int]], places: int, first: int, there: int, count: int
) -> None:
    """Also where all records differ but in their names, and where they have other sizes."""
    names, theirs = [*range(COUNT)], [*range(COUNT)]
    for begin, length in runs:
        for number in range(begin, min(begin + length, COUNT)):
            theirs[number] = 1 << 20 | number
    ours, more = Records(packed(names), RECORD_BYTES), b"m" * (8 * places)
    other = Records(packed([*[0] * there, *theirs[first:]], places, more), RECORD_BYTES + len(more))
    end = min(first + count, COUNT)
    found = [*ours.other_names(first, end, other, there)]
    differ = [number for number in range(first, end) if names[number] != theirs[number]]
    assert [number for run in found for number in range(*run)] == differ
    assert all(one[1] < next[0] for one, next in pairwise(found)), "neighbours are one run"


@given(st.lists(st.integers(0, 3) | st.just(ZEROS), max_size=40), st.permutations(range(4)))
def test_renumbered_references_differ_in_their_packs_alone(packs: Sequence[int], numbers: Sequence[int]) -> None:
    rng = random.Random(1)
    records = [(rng.randbytes(32), pack, rng.getrandbits(32)) for pack in packs]
    data = b"".join(struct.pack("<32sII", *record) for record in records)
    found = References(renumbered(data, dict(enumerate(numbers))))
    assert [*found.packs] == [pack if pack == ZEROS else numbers[pack] for pack in packs]
    assert [*found.blocks] == [block for _, _, block in records]
    assert found.names(0, len(found)) == [name for name, _, _ in records]


PACK = st.integers(0, 3) | st.sampled_from([*range(252, 258), 0xFF00, ZEROS - 1, ZEROS, ZEROS >> 8])


@given(
    st.lists(PACK, max_size=40),
    st.dictionaries(PACK.filter(lambda pack: pack != ZEROS), PACK, max_size=6),
    PACK,
)
@example([0, 1, 255, ZEROS], {0: 1}, 2)
@example([0, 1, ZEROS], {0: 254, 1: 0}, 255)
def test_references_are_counted_as_another_image_counts_whatever_number_they_had(
    packs: Sequence[int], numbers: dict[int, int], other: int
) -> None:
    data = b"".join(struct.pack("<32sII", bytes([at]) * 32, pack, at) for at, pack in enumerate(packs))
    found = References(counted(data, numbers, other))
    assert [*found.packs] == [pack if pack == ZEROS else numbers.get(pack, other) for pack in packs]
    assert [*found.blocks] == [*range(len(packs))]
    assert found.names(0, len(found)) == [bytes([at]) * 32 for at in range(len(packs))]
