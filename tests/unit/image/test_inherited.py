"""Runs of chunks that an image takes from its parent: the image is as if each chunk had been looked at."""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imaging import CIPHERS, bytes_of, check, described, mapped, read, write

from gcr.errors import UsageError
from gcr.hashing import hash_bytes
from gcr.hashing.chunks import TILE_BYTES as CHUNK
from gcr.hashing.chunks import chunk_count
from gcr.image.files.manifest import Manifest
from gcr.image.pack.pace import Packing
from gcr.image.store.store import Store
from gcr.image.write.inherited import Inherited
from gcr.image.write.parent import Parent, parent_of
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged

pytestmark = pytest.mark.on_disk

WHO = (7, 8, 3)  # as in imaging.py
ALLOCATIONS = st.lists(  # chunks by a number, 0 for zeros; bytes of the last chunk; numbers of the changed chunks
    st.tuples(
        st.lists(st.integers(0, 6), min_size=1, max_size=9),
        st.sampled_from([1, 100, CHUNK]),
        st.sets(st.integers(0, 8), max_size=5),
    ),
    min_size=1,
    max_size=4,
)


def data_of(seeds: Sequence[int], last: int) -> bytes:
    return b"".join(bytes_of(seed, CHUNK) if seed else bytes(CHUNK) for seed in seeds)[
        : (len(seeds) - 1) * CHUNK + last
    ]


def as_changed(data: bytes, changed: set[int], rng: random.Random) -> bytes:
    """Returns other bytes in place of the chunks with these numbers, some of them zeros."""
    found = bytearray(data)
    for number in changed:
        begin, end = number * CHUNK, min((number + 1) * CHUNK, len(data))
        found[begin:end] = rng.choice([rng.randbytes, bytes])(max(0, end - begin))
    return bytes(found)


def inherited(parent: Parent, id: int, size: int, changed: set[int]) -> list[Inherited]:
    """Returns the chunks without the changed ones, run by run; none where the parent has another size."""
    known, count = parent.allocations.get((7, id)), chunk_count(size, CHUNK)
    if known is None or known.size != size:
        return []
    borders = [-1, *sorted(number for number in changed if number < count), count]
    return [Inherited(known, one + 1, next) for one, next in pairwise(borders) if one + 1 < next]


def child_of(store: Store, data: Sequence[bytes], changed: Sequence[set[int]], packing: Packing) -> Manifest:
    """Writes an image; the bytes of its inherited chunks are nowhere."""
    with ImageWriter(store, "child", threads=3, chunk_bytes=CHUNK, packing=packing) as writer:
        parent, _ = parent_of(writer, {WHO})
        assert parent
        writer.key, additions = parent.key, list[tuple[memoryview, list[Inherited]]]()
        for id, (each, some) in enumerate(zip(data, changed, strict=True), 1):
            memory, runs = mapped(each), inherited(parent, id, len(each), some)
            for run in runs:
                memory[run.first * CHUNK : run.end * CHUNK] = b"\xaa" * run.size(CHUNK)
            additions.append((memory, runs))
        writer.add(additions)
        return writer.commit(described("child", [*map(len, data)], created=9.0, chunk_bytes=CHUNK))


@settings(max_examples=60)
@given(
    cipher=st.sampled_from([*CIPHERS]),
    packings=st.tuples(*[st.sampled_from(["plain", "compressed"])] * 2),
    earlier=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=3), max_size=3),
    allocations=ALLOCATIONS,
    resized=st.dictionaries(st.integers(0, 3), st.integers(1, 3 * CHUNK), max_size=2),
    seed=st.integers(0, 1 << 16),
)
def test_an_image_that_inherits_is_as_one_that_looks_at_each_chunk(
    cipher: str,
    packings: tuple[Packing, Packing],
    earlier: Sequence[Sequence[int]],
    allocations: Sequence[tuple[list[int], int, set[int]]],
    resized: dict[int, int],
    seed: int,
) -> None:
    """Of any runs, odd sizes, allocations that grew, shrank or are new, packs of all kinds, and several packs."""
    rng = random.Random(seed)
    before, changed = [data_of(*some) for *some, _ in allocations], [some for *_, some in allocations]
    now = [as_changed(each, some, rng) for each, some in zip(before, changed, strict=True)]
    sizes = {number: size for number, size in resized.items() if number < len(now) and size != len(now[number])}
    now = [bytes_of(7, sizes[number]) if number in sizes else each for number, each in enumerate(now)]
    with TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store", CIPHERS[cipher])
        for number, seeds in enumerate(earlier):
            write(store, f"e{number}", [data_of(seeds, CHUNK)], created=0.5, chunk_bytes=CHUNK)
        with ImageWriter(store, "one", threads=2, chunk_bytes=CHUNK, packing=packings[0]) as writer:
            writer.add((mapped(each), ()) for each in before)
            writer.commit(described("one", [*map(len, before)], created=5.0, chunk_bytes=CHUNK))
        made = child_of(store, now, changed, packings[1])
        assert read(store, "child") == now
        check(store, "child")
        hashes = store.images.hashes(made)
        assert hashes.digests == b"".join(hash_bytes(each, hashes.key, CHUNK) for each in now)
        looked = write(store, "looked", now, chunk_bytes=CHUNK)
        assert made.costs.bytes_total == looked.costs.bytes_total
        assert made.costs.bytes_zero == looked.costs.bytes_zero
        assert looked.costs.bytes_written == 0, "the child has stored all there is"
        used = {*store.images.references(made).packs} - {0xFFFFFFFF}
        assert used == {*range(len(made.packs))}, "no pack is named that the image does not need"
        store.remove([name for name in store.images.names() if name != "child"])
        assert read(store, "child") == now, "it needs no other image"


@pytest.mark.parametrize("runs", [[(0, 2), (1, 3)], [(0, 5)], [(2, 2)], [(-1, 1)]])
def test_runs_that_an_allocation_has_not_are_refused(store: Store, runs: Sequence[tuple[int, int]]) -> None:
    write(store, "one", [bytes_of(1, 4 * CHUNK)], chunk_bytes=CHUNK)
    with ImageWriter(store, "child", chunk_bytes=CHUNK) as writer, pytest.raises(UsageError):
        parent, _ = parent_of(writer, {WHO})
        assert parent
        writer.add([(mapped(bytes(4 * CHUNK)), [Inherited(parent.allocations[7, 1], *run) for run in runs])])


def test_an_allocation_of_another_size_inherits_nothing(store: Store) -> None:
    write(store, "one", [bytes_of(1, 4 * CHUNK)], chunk_bytes=CHUNK)
    with (
        ImageWriter(store, "child", chunk_bytes=CHUNK) as writer,
        pytest.raises(UsageError, match="has no chunks 0 to 1"),
    ):
        parent, _ = parent_of(writer, {WHO})
        assert parent
        writer.add([(mapped(bytes(5 * CHUNK)), [Inherited(parent.allocations[7, 1], 0, 1)])])


def test_a_pack_that_is_found_damaged_meanwhile_makes_no_image(store: Store) -> None:
    """The parent was right when it was read."""
    pack = write(store, "one", [bytes_of(1, 4 * CHUNK)], chunk_bytes=CHUNK).packs[0]
    with ImageWriter(store, "child", chunk_bytes=CHUNK) as writer:
        parent, _ = parent_of(writer, {WHO})
        assert parent
        writer.add([(mapped(bytes(4 * CHUNK)), [Inherited(parent.allocations[7, 1], 0, 4)])])
        store.packs.distrust(store.packs.folder / f"{pack.id}.pack")
        with pytest.raises(Damaged, match="found damaged meanwhile"):
            writer.commit(described("child", [4 * CHUNK], chunk_bytes=CHUNK))
    assert store.images.names() == ["one"]


def test_a_parent_whose_references_say_another_place_is_passed_over(store: Store) -> None:
    """Nothing else compares them: an image would inherit them as they are."""
    data = [bytes_of(1, 2 * CHUNK), bytes_of(2, CHUNK)]
    with ImageWriter(store, "one", chunk_bytes=CHUNK) as writer:
        writer.add((mapped(each), ()) for each in data)
        records = writer._work.brought.references
        records[36:40], records[76:80] = records[76:80], records[36:40]  # the blocks of two chunks
        writer.commit(described("one", [*map(len, data)], chunk_bytes=CHUNK))
    with ImageWriter(store, "child", chunk_bytes=CHUNK) as writer:
        parent, refused = parent_of(writer, {WHO})
    assert parent is None
    assert refused and "not where it should be" in refused


def test_an_image_that_came_while_the_writer_had_begun_is_its_parent(store: Store) -> None:
    """Its packs are new: the writer has not read them when it began."""
    data = bytes_of(1, 4 * CHUNK)
    with ImageWriter(store, "child", chunk_bytes=CHUNK) as writer:
        pack = write(store, "one", [data], chunk_bytes=CHUNK).packs[0]
        parent, _ = parent_of(writer, {WHO})
        assert parent and parent.name == "one"
        writer.key = parent.key
        writer.add([(mapped(bytes(4 * CHUNK)), [Inherited(parent.allocations[7, 1], 0, 4)])])
        made = writer.commit(described("child", [4 * CHUNK], chunk_bytes=CHUNK))
    assert ([*made.packs], read(store, "child")) == ([pack], [data])
