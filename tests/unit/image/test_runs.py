"""Chunks are found, read and compared in runs: all come back, wherever they lie, and none that is damaged."""

import random
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from imaging import CIPHERS, bytes_of, described, flipped, folder_of, imaged, mapped, write
from msgspec.structs import replace

from gcr.hashing.chunks import MAX_CHUNK_BYTES, TILE_BYTES
from gcr.image.chunks.entry import BLOCK, PLACED, padded
from gcr.image.chunks.index import Index, Run
from gcr.image.disk.bounce import huge_buffer
from gcr.image.files.manifest import Manifest
from gcr.image.files.names import references_path
from gcr.image.files.references import RECORD_BYTES, ZEROS, References
from gcr.image.pack.reader import OpenPack
from gcr.image.read.fetching import GROUP_BYTES
from gcr.image.read.folder import bring_file
from gcr.image.read.places import Places, checked_places
from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged

CHUNK = TILE_BYTES
PID, DEVICE = 7, "GPU-1"
UNTOUCHED = b"\xaa"
LAST = [100, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK]

chunks = st.tuples(st.integers(0, 5), st.sampled_from([CHUNK, CHUNK, CHUNK, *LAST]))  # seed, 0: zeros; and size


def data_of(chunks: Sequence[tuple[int, int]]) -> bytes:
    return b"".join(bytes_of(seed, size) if seed else bytes(size) for seed, size in chunks)


@settings(max_examples=60)
@given(
    cipher=st.sampled_from([*CIPHERS]),
    earlier=st.lists(st.lists(chunks, max_size=5), max_size=3),
    allocations=st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=8), chunks), min_size=1, max_size=5),
    rng=st.randoms(),
    slot=st.integers(1, 9),
)
def test_whatever_lies_where_all_comes_back(
    cipher: str,
    earlier: Sequence[Sequence[tuple[int, int]]],
    allocations: Sequence[tuple[Sequence[int], tuple[int, int]]],
    rng: random.Random,
    slot: int,
) -> None:
    """Chunks of other images' packs, zeros, odd last chunks, and allocations that lie in another order than written."""
    data = [data_of([*((seed, CHUNK) for seed in seeds), last]) for seeds, last in allocations]
    with TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store", CIPHERS[cipher])
        for number, some in enumerate(earlier):
            write(store, f"i{number}", [data_of([each]) for each in some], chunk_bytes=CHUNK)
        places = moved(store, "warm", data, rng)
        line = bytearray(sum(map(len, data)))
        with ImageReader(store, "warm", threads=3) as reader:
            for offset, size in reader.lines[PID, DEVICE].windows(slot * CHUNK):
                reader.read(PID, DEVICE, offset, memoryview(line)[offset : offset + size])
    for at, expected in zip(places, data, strict=True):
        assert line[at : at + len(expected)] == expected


def moved(store: Store, name: str, data: Sequence[bytes], rng: random.Random) -> Sequence[int]:
    """Writes allocations that lie on the line in any order. Returns where."""
    order = rng.sample(range(len(data)), len(data))
    starts = dict(zip(order, accumulate((len(data[number]) for number in order), initial=0), strict=False))
    with ImageWriter(store, name, threads=2, chunk_bytes=CHUNK) as writer:
        writer.add((mapped(each), ()) for each in data)
        plain = described(name, [*map(len, data)], chunk_bytes=CHUNK)
        writer.commit(lambda found: shifted(plain(found), starts))
    return [starts[number] for number in range(len(data))]


def shifted(manifest: Manifest, starts: dict[int, int]) -> Manifest:
    (process,) = manifest.processes
    handles = tuple(replace(each, offset=starts[number]) for number, each in enumerate(process.table.handles))
    return replace(manifest, processes=(replace(process, table=replace(process.table, handles=handles)),))


@settings(max_examples=60)
@given(cipher=st.sampled_from([*CIPHERS]), some=st.lists(chunks, min_size=1, max_size=12))
def test_a_file_comes_back_with_its_zeros_and_without(cipher: str, some: Sequence[tuple[int, int]]) -> None:
    """Chunks before and behind zeros lie together in the pack, and not in the file."""
    data, ends = data_of(some), [*accumulate((size for _, size in some), initial=0)]
    zeros = [(at, at + size) for at, (seed, size) in zip(ends, some, strict=False) if not seed]
    with TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store", CIPHERS[cipher])
        imaged(store, "one", folder_of(Path(folder) / "in", {"pages": data}), (), {"pages": [size for _, size in some]})
        with ImageReader(store, "one", threads=2) as reader:
            whole, kept = memoryview(bytearray(len(data))), b"".join(data_of([each]) for each in some if each[0])
            reader.read_file("pages", whole)
            assert whole == data
            assert [*reader.zeros("pages", [(0, len(data))], 1)] == zeros
            for name, content, left in (("a", data, []), ("b", kept, zeros)):
                (out := Path(folder) / name).mkdir()
                bring_file(reader, "pages", out, left)
                assert (out / "pages").read_bytes() == content
            if kept:
                target = huge_buffer(len(kept))[: len(kept)]
                reader.read_file("pages", target, zeros)
                assert target == kept


def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list of the sizes of all reads from now on."""
    sizes, real = list[int](), OpenPack.blocks

    def counted(self: OpenPack, block: int, target: memoryview) -> None:
        sizes.append(len(target))
        real(self, block, target)

    monkeypatch.setattr(OpenPack, "blocks", counted)
    return sizes


def test_what_lies_together_is_read_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is of several allocations."""
    count = 2 * GROUP_BYTES // CHUNK + 44
    data = [bytes_of(seed, CHUNK) for seed in range(1, count + 1)]
    write(store, "warm", data, chunk_bytes=CHUNK)
    sizes, target = reads(monkeypatch), bytearray(count * CHUNK)
    with ImageReader(store, "warm") as reader:
        reader.read(PID, DEVICE, 0, memoryview(target))
    assert target == b"".join(data)
    assert sorted(sizes) == [44 * CHUNK, GROUP_BYTES, GROUP_BYTES]


@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("wrong", [[0], [1], [3], [4], [2, 4], [4, 0]])
def test_the_first_wrong_chunk_of_a_run_is_named_and_none_of_the_run_is_copied(
    store: Store, wrong: list[int], last: int
) -> None:
    size = 4 * CHUNK + last
    write(store, "warm", [bytes_of(1, size)], chunk_bytes=CHUNK)
    (pack,) = store.packs.folder.iterdir()
    for number in wrong:
        flipped(pack, BLOCK + number * CHUNK + min(CHUNK, last) - 1, 3)
    target, block = bytearray(UNTOUCHED * size), 1 + min(wrong) * CHUNK // BLOCK
    with (
        ImageReader(store, "warm") as reader,
        pytest.raises(Damaged, match=f"{pack.name}: the chunk at block {block} is not"),
    ):
        reader.read(PID, DEVICE, 0, memoryview(target))
    assert target == UNTOUCHED * size


def changed(data: bytearray, at: int, change: Callable[[int], int]) -> None:
    struct.pack_into("<I", data, at, change(struct.unpack_from("<I", data, at)[0]))


REFERENCES: dict[str, Callable[[bytearray, int], object]] = {
    "another name": lambda data, at: changed(data, at, lambda name: name ^ 1),
    "the end of another name": lambda data, at: changed(data, at + 28, lambda name: name ^ 1 << 31),
    "another pack": lambda data, at: changed(data, at + 32, lambda pack: pack ^ 1),
    "zeros": lambda data, at: changed(data, at + 32, lambda _: ZEROS),
    "the block before": lambda data, at: changed(data, at + 36, lambda block: block - 1),
    "the next chunk": lambda data, at: changed(data, at + 36, lambda block: block + CHUNK // BLOCK),
    "no chunk": lambda data, at: changed(data, at + 36, lambda _: 1 << 31),
}
OF_ZEROS = 3  # the chunk below that is zero; its block says nothing


@pytest.mark.parametrize(
    ("wrong", "number"),
    [
        (each, number)
        for each in REFERENCES
        for number in range(6)
        if number != OF_ZEROS or each in ("another name", "the end of another name", "another pack")
    ],
)
def test_a_wrong_reference_anywhere_in_a_run_is_found(store: Store, wrong: str, number: int) -> None:
    """Two packs, zeros in between, and the last chunk of each pack: one more would lie behind it."""
    write(store, "one", [bytes_of(1, 2 * CHUNK)], chunk_bytes=CHUNK)
    data = [bytes_of(2, CHUNK), bytes_of(1, 2 * CHUNK), bytes(CHUNK), bytes_of(3, CHUNK + 100)]
    manifest = write(store, "warm", data, chunk_bytes=CHUNK)
    packs = [store.packs.reader(pack) for pack in manifest.packs]
    stored = (store.path / references_path("warm")).read_bytes()
    said = bytearray(store.cipher.decrypt(references_path("warm"), stored, "warm"))
    checked_places(store, manifest, References(bytes(said)), packs)
    REFERENCES[wrong](said, number * RECORD_BYTES)
    refuses(store, manifest, References(bytes(said)))


def test_references_to_more_than_a_pack_has_are_found(store: Store) -> None:
    """They go on where its index ends."""
    manifest = write(store, "warm", [bytes_of(1, 2 * CHUNK)], chunk_bytes=CHUNK)
    packs = [store.packs.reader(pack) for pack in manifest.packs]
    (process,) = manifest.processes
    (handle,) = process.table.handles
    larger = replace(handle, spec=replace(handle.spec, size=4 * CHUNK))
    forged = replace(manifest, processes=(replace(process, table=replace(process.table, handles=(larger,))),))
    names = [*packs[0].chunks.names(0, 2), bytes(32), bytes(32)]
    said = b"".join(struct.pack("<32sII", name, 0, 1 + n * CHUNK // BLOCK) for n, name in enumerate(names))
    refuses(store, forged, References(said))


@pytest.mark.parametrize("size", [2 * CHUNK + 99, 2 * CHUNK + 101, 3 * CHUNK])
def test_a_chunk_of_another_size_than_its_pack_says_is_found(store: Store, size: int) -> None:
    manifest = write(store, "warm", [bytes_of(1, 2 * CHUNK + 100)], chunk_bytes=CHUNK)
    references = store.images.references(manifest)
    (process,) = manifest.processes
    (handle,) = process.table.handles
    other = replace(handle, spec=replace(handle.spec, size=size))
    forged = replace(manifest, processes=(replace(process, table=replace(process.table, handles=(other,))),))
    refuses(store, forged, references)


def refuses(store: Store, manifest: Manifest, references: References) -> None:
    """Asserts that a check of all, and a look at each chunk alone, finds a chunk that is not where it should be."""
    packs = [store.packs.reader(pack) for pack in manifest.packs]
    with pytest.raises(Damaged, match="warm: a chunk is not where it should be"):
        checked_places(store, manifest, references, packs)
    with pytest.raises(Damaged, match="warm: a chunk is not where it should be"):
        places = Places(store, manifest, references, packs)
        for first in range(len(places.sizes)):
            assert [*places.parts(first, first + 1)]


def index_of(sizes: Sequence[int]) -> Index:
    blocks = [*accumulate((padded(size) // BLOCK for size in sizes), initial=1)]
    records = b"".join(PLACED.pack(bytes([n]) * 32, *each) for n, each in enumerate(zip(blocks, sizes, strict=False)))
    return Index(records, PLACED, blocks[-1] * BLOCK)


NONSENSE: dict[str, tuple[Sequence[tuple[int, int]], int]] = {  # block and size of each, and the block behind the last
    "behind another beginning": ([(2, 100)], 3),
    "a gap": ([(1, 100), (3, 100)], 4),
    "one upon the other": ([(1, 2 * BLOCK), (2, 100)], 3),
    "in another order": ([(2, 100), (1, 100)], 3),
    "another end": ([(1, 100)], 3),
    "none, and another end": ([], 2),
    "no size": ([(1, 0)], 1),
    "too large": ([(1, MAX_CHUNK_BYTES + 1)], 2 + MAX_CHUNK_BYTES // BLOCK),
}


@pytest.mark.parametrize("wrong", NONSENSE)
def test_an_index_that_no_pack_has_is_refused(wrong: str) -> None:
    placed, end = NONSENSE[wrong]
    with pytest.raises(ValueError, match=r"behind the one before|such a size"):
        Index(b"".join(PLACED.pack(b"n" * 32, *each) for each in placed), PLACED, end * BLOCK)


@given(st.lists(st.integers(1, 5 * BLOCK), max_size=20))
@example([])
def test_an_index_finds_chunks_where_they_begin(sizes: Sequence[int]) -> None:
    index, starts = index_of(sizes), {}
    for number, size in enumerate(sizes):
        starts[index.borders[number]] = number
        assert index.all().names[number] == bytes([number]) * 32 and index.sizes[number] == size
    assert [index.find(block) for block in range(index.borders[-1] + 2)] == [
        starts.get(block) for block in range(index.borders[-1] + 2)
    ]


@given(st.lists(st.integers(1, 5 * BLOCK), min_size=1, max_size=20), st.integers(1, 8), st.data())
def test_groups_have_every_chunk_once_and_are_as_large_as_they_may_be(
    sizes: Sequence[int], most: int, data: st.DataObject
) -> None:
    index = index_of(sizes)
    first = data.draw(st.integers(0, len(sizes) - 1))
    run = Run(index, first, data.draw(st.integers(first + 1, len(sizes))))
    groups = [*run.groups(most * BLOCK)]
    assert [number for each in groups for number in range(each.first, each.end)] == [*range(run.first, run.end)]
    for each, following in zip(groups, [*groups[1:], None], strict=True):
        stored = [padded(size) for size in sizes[each.first : each.end]]
        assert each.stored_bytes == sum(stored) and each.size == sum(sizes[each.first : each.end])
        assert len(stored) == 1 or each.stored_bytes <= most * BLOCK
        assert following is None or each.stored_bytes + padded(sizes[following.first]) > most * BLOCK


@given(st.lists(st.integers(1, 3 * BLOCK), min_size=1, max_size=8))
@example([BLOCK, 2 * BLOCK, 5])
@example([5, BLOCK])
def test_the_pieces_of_a_run_are_its_chunks_without_what_lies_between(sizes: Sequence[int]) -> None:
    run = index_of(sizes).all()
    blocks = memoryview(random.Random(1).randbytes(run.stored_bytes))
    expected, at = [], 0
    for size in sizes:
        expected.append(bytes(blocks[at : at + size]))
        at += padded(size)
    assert [*map(bytes, run.chunks(blocks))] == expected
    assert b"".join(run.pieces(blocks)) == b"".join(expected)
    if not any(size % BLOCK for size in sizes[:-1]):
        assert len(run.pieces(blocks)) == 1
