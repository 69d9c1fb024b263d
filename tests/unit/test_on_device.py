"""The windows of a job's memory that a device lacks: all chunks that differ, and little that does not."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from imaging import table

from gcr.hashing.chunks import TILE_BYTES as CHUNK
from gcr.image.chunks.windows import lines_of
from gcr.image.files.references import References, pack_into
from gcr.image_helper import ondevice
from gcr.image_helper.ondevice import OnDevice

KEY = (7, "GPU-1")


def reader_of(sizes: Sequence[int], names: Sequence[Sequence[int]]) -> Any:
    """Returns the reader of an image: each chunk has a number for its name, and a place of its own."""
    data = bytearray(40 * sum(map(len, names)))
    for at, name in enumerate(name for some in names for name in some):
        pack_into(data, at, (name.to_bytes(32, "little"), 0, at))
    sealed = table(sizes)
    manifest = SimpleNamespace(processes=[SimpleNamespace(table=sealed)], chunk_bytes=CHUNK)
    images = SimpleNamespace(references=lambda _manifest: References(bytes(data)))
    store = SimpleNamespace(images=images)
    return SimpleNamespace(name="warm", lines=lines_of([sealed], CHUNK), store=store, manifest=manifest)


def chunks(sizes: Sequence[int]) -> list[list[int]]:
    return [[0] * -(-size // CHUNK) for size in sizes]


@given(
    st.lists(
        st.builds(lambda whole, rest: whole * CHUNK + rest, st.integers(0, 30), st.integers(1, CHUNK)),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.tuples(st.integers(0, 120), st.integers(1, 9)), max_size=8),
    st.integers(1, 9),
    st.integers(0, 5),
)
@example([20 * CHUNK + 1], [(0, 1), (3, 1), (7, 1)], 9, 2)
def test_windows_have_all_that_differs_and_no_more_than_a_little_beside_it(
    sizes: Sequence[int], changed: Sequence[tuple[int, int]], most: int, near: int
) -> None:
    before, after = chunks(sizes), chunks(sizes)
    places = [(id, number) for id, some in enumerate(after) for number in range(len(some))]
    for first, count in changed:
        for id, number in places[first : first + count]:
            after[id][number] = 1
    device, kept, window = OnDevice(), [*range(1, len(sizes) + 1)], most * CHUNK
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ondevice, "NEAR_BYTES", near * CHUNK)
        assert sum(size for _, size in device.lacking(reader_of(sizes, before), KEY, kept, window)) == sum(sizes)
        device.brought(*KEY)
        reader = reader_of(sizes, after)
        found = device.lacking(reader, KEY, kept, window)
    read = set[tuple[int, int]]()
    end = 0
    for offset, size in found:
        assert end <= offset and 0 < size <= window
        end = offset + size
        for first, _, length in reader.lines[KEY].spans(offset, size):  # raises for bytes that are no whole chunks
            read |= {places[first + at] for at in range(-(-length // CHUNK))}
    differ = {(id, number) for id, number in places if after[id][number]}
    assert differ <= read
    for id, number in read - differ:
        ahead = [n for of, n in differ if of == id and n > number]
        behind = [n for of, n in differ if of == id and n < number]
        assert ahead and behind and min(ahead) - max(behind) - 1 <= near


def test_memory_that_touches_shares_windows() -> None:
    """A job may have thousands of allocations of a few MiB, and each window is a call."""
    sizes = [3 * CHUNK] * 4
    assert OnDevice().lacking(reader_of(sizes, chunks(sizes)), KEY, (), 5 * CHUNK) == [
        (0, 5 * CHUNK),
        (5 * CHUNK, 5 * CHUNK),
        (10 * CHUNK, 2 * CHUNK),
    ]


def test_a_device_that_kept_nothing_lacks_everything() -> None:
    sizes, device = [3 * CHUNK, 2 * CHUNK], OnDevice()
    device.lacking(reader_of(sizes, chunks(sizes)), KEY, (), 9 * CHUNK)
    device.brought(*KEY)
    assert device.lacking(reader_of(sizes, chunks(sizes)), KEY, [1], 9 * CHUNK) == [(3 * CHUNK, 2 * CHUNK)]
    assert device.lacking(reader_of(sizes, chunks(sizes)), KEY, [1, 2], 9 * CHUNK) == [(0, 5 * CHUNK)], "not brought"
