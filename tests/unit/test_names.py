"""Names of chunks by the library for the processor, against the package of BLAKE3's authors."""

import random
from collections.abc import Sequence

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr.hashing.names import NAME_BYTES, names_within
from gcr.hashing.native import Isa
from gcr.image.chunks.chunk import names_of

MOST = 16 << 20  # bytes of a chunk
MEMORY = memoryview(bytearray(random.Random(3).randbytes(1 << 20) * 17))
KEY = bytes(range(1, 33))
BORDERS = [0, 1, 63, 64, 65, 1023, 1024, 1025, 2048, 3 << 10, 5 << 10, 16 << 10, (16 << 10) + 1, 17 << 10]
PARTS = [
    (256 << 10) - 1,
    256 << 10,
    (256 << 10) + 1,
    257 << 10,
    512 << 10,
    (768 << 10) + 5,
    MOST - 1024,
    MOST - 1,
    MOST,
]


def here() -> list[Isa]:
    """Returns the instruction sets that this processor has."""
    found = []
    for isa in Isa:
        try:
            names_within(MEMORY, [0], [1], isa=isa)
        except ValueError:
            continue
        found.append(isa)
    return found


def theirs(starts: Sequence[int], sizes: Sequence[int], key: bytes = b"") -> bytes:
    pieces = (MEMORY[start : start + size] for start, size in zip(starts, sizes, strict=True))
    return b"".join(blake3(piece, key=key).digest() if key else blake3(piece).digest() for piece in pieces)


@pytest.mark.parametrize("key", [b"", KEY], ids=["plain", "keyed"])
def test_sizes_at_the_borders_of_blocks_leaves_and_parts(key: bytes) -> None:
    sizes = [*BORDERS, *PARTS]
    starts = [number % 7 for number in range(len(sizes))]
    expected = theirs(starts, sizes, key)
    for isa in here():
        assert names_within(MEMORY, starts, sizes, key, isa) == expected, isa.name


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 300_000)), max_size=8))
def test_any_chunks(chunks: list[tuple[int, int]]) -> None:
    starts, sizes = [start for start, _ in chunks], [size for _, size in chunks]
    expected = theirs(starts, sizes)
    for isa in here():
        assert names_within(MEMORY, starts, sizes, isa=isa) == expected, isa.name


def test_memory_that_may_only_be_read_has_the_same_names() -> None:
    sizes = [5000, 1024]
    for key in (b"", KEY):
        assert names_of(MEMORY.toreadonly(), [3, 9], sizes, key) == names_of(MEMORY, [3, 9], sizes, key)
    assert len(names_of(MEMORY, [3, 9], sizes)) == 2 * NAME_BYTES


@pytest.mark.parametrize(
    ("starts", "sizes", "key", "said"),
    [
        ([len(MEMORY) - 4], [5], b"", "not within"),
        ([-1], [5], b"", "not within"),
        ([0, 1], [5], b"", "not a size"),
        ([0], [5], b"short", "no key"),
        ([0], [MOST + 1], b"", "more than 16 MiB"),
    ],
)
def test_what_cannot_be_named(starts: list[int], sizes: list[int], key: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        names_within(MEMORY, starts, sizes, key)
