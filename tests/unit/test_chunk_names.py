"""Names of many chunks at once are those of each chunk, wherever there are zeros."""

from collections.abc import Callable
from itertools import accumulate

import pytest
from blake3 import blake3
from hypothesis import example, given
from hypothesis import strategies as st

from gcr.image.crypto.aes import Aes
from gcr.image.crypto.cipher import PLAIN

KEY = bytes(range(32))


def one_by_one(size: int) -> st.SearchStrategy[bytes]:
    """Returns zeros of this size, with a few other bytes perhaps, also the first or the last."""
    place = st.integers(0, size - 1) | st.sampled_from([0, size - 1])
    places = st.dictionaries(place, st.integers(1, 255), max_size=2)
    return places.map(lambda some: bytes(some.get(at, 0) for at in range(size)))


@pytest.mark.parametrize("frozen", [False, True], ids=["memory", "memory that may not be written"])
@given(chunks=st.lists(st.sampled_from([1, 2, 63, 64, 65, 1000, 4096]).flatmap(one_by_one), max_size=6))
@example(chunks=[])
@example(chunks=[bytes(4096), bytes(1)])
def test_each_chunk_has_its_name(frozen: bool, chunks: list[bytes]) -> None:
    together = b"".join(chunks)
    memory = memoryview(together if frozen else bytearray(together))
    sizes = [*map(len, chunks)]
    starts = [*accumulate(sizes[:-1], initial=0)] if sizes else []
    named: dict[str, Callable[[bytes], bytes]] = {
        "plain": lambda chunk: blake3(chunk).digest(),
        "encrypted": lambda chunk: Aes(KEY).name_of(chunk),
    }
    assert PLAIN.names_of(memory, starts, sizes) == b"".join(map(named["plain"], chunks))
    assert Aes(KEY).names_of(memory, starts, sizes) == b"".join(map(named["encrypted"], chunks))
