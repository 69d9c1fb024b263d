"""Chunks by number: what is brought is there once, and no object of the language is left of it."""

import gc
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imaging import bytes_of, described, mapped, read

from gcr.errors import RolledBack, UsageError
from gcr.image.chunks.chunk import Chunk
from gcr.image.store.store import Store
from gcr.image.write.brought import Brought, BroughtChunks
from gcr.image.write.writer import ImageWriter

SMALL = 32 << 10


def one(number: int) -> Brought:
    return Brought(number, Chunk(struct.pack("<32x")[:24] + struct.pack("<Q", number), bytes([number] * 16)), 7, number)


@given(st.lists(st.lists(st.integers(0, 30), max_size=6), max_size=8))
def test_each_number_once_in_any_order(groups: list[list[int]]) -> None:
    made, there = BroughtChunks(), dict[int, Brought]()
    for numbers in groups:
        brought = [one(number) for number in numbers]
        twice = next((n for at, n in enumerate(numbers) if n in there or n in numbers[:at]), None)
        assert made.add(brought) == twice
        if twice is None:
            there |= {each.number: each for each in brought}
    assert made.count == len(there)
    for first in range(5):
        for count in range(32):
            missing = [number for number in range(first, first + count) if number not in there]
            assert made.missing(first, count) == (missing[0] if missing else None)
            if not missing:
                found = made.records(first, count).names(0, count)
                assert found == [there[first + at].chunk.name for at in range(count)]
    end = max(there, default=-1) + 1
    records = [there.get(number) for number in range(end)]
    packed = [struct.pack("<32sII", each.chunk.name, 7, each.block) if each else bytes(40) for each in records]
    assert made.references == b"".join(packed)
    assert made.digests == b"".join(each.chunk.digest if each else bytes(16) for each in records)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(1, 6)), max_size=8))
def test_a_run_is_added_as_its_chunks_one_by_one(runs: list[tuple[bool, int, int]]) -> None:
    at_once, one_by_one = BroughtChunks(), BroughtChunks()
    for packed, first, count in runs:
        brought = [one(number) for number in range(first, first + count)]
        alone = BroughtChunks()
        alone.add(brought)
        records, digests = alone.references[first * 40 :], alone.digests[first * 16 :]
        found = at_once.add_run(first, bytes(records), bytes(digests)) if packed else at_once.add(brought)
        assert found == one_by_one.add(brought)
    for name in ("count", "references", "digests", "_there"):
        assert getattr(at_once, name) == getattr(one_by_one, name)


def test_of_a_chunk_no_object_is_left_to_the_garbage_collector(tmp_path: Path) -> None:
    """The collector would stop all threads to look at millions of objects."""
    data = bytes_of(1, 300 * SMALL)
    with ImageWriter(Store(tmp_path / "store"), "warm", chunk_bytes=SMALL) as writer:
        writer.add([(mapped(data[: 20 * SMALL]), ())])
        gc.collect()
        before = len(gc.get_objects())
        writer.add([(mapped(data[20 * SMALL :]), ())])
        gc.collect()
        assert len(gc.get_objects()) < before + 100


def test_one_that_is_brought_twice_at_once_is_refused(tmp_path: Path) -> None:
    data = mapped(bytes_of(1, SMALL))
    store = Store(tmp_path / "store")
    twice = pytest.raises(UsageError, match="chunk 3 of image warm was brought before")
    with ImageWriter(store, "warm", chunk_bytes=SMALL) as writer, twice:
        writer.put([(3, data), (3, data)])


def test_an_image_that_lacks_one_is_none(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with ImageWriter(store, "warm", chunk_bytes=SMALL) as writer:
        writer.put((number, mapped(bytes_of(number, SMALL))) for number in (0, 1, 3))
        with pytest.raises(RolledBack, match="chunk 2 of image warm was never brought"):
            writer.commit(described("warm", [4 * SMALL], chunk_bytes=SMALL))
    assert store.images.names() == []


def test_a_pack_that_was_asked_for_and_not_used_is_not_the_images(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    data = [bytes_of(number, SMALL) for number in range(3)]
    for name, some in (("one", data[:1]), ("two", data[1:2]), ("three", data[1:])):
        with ImageWriter(store, name, chunk_bytes=SMALL) as writer:
            writer.add((mapped(each), ()) for each in some)
            writer.commit(described(name, [SMALL] * len(some), chunk_bytes=SMALL))
    assert [len(store.images.manifest(name).packs) for name in ("one", "two", "three")] == [1, 1, 2]
    store.remove(["one", "two"])
    assert read(store, "three") == data[1:]
