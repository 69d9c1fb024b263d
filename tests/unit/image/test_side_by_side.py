"""An image in memory is written into several packs at once, and is read, kept and given up as any other."""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imaging import CIPHERS, bytes_of, check, described, mapped, read, write

from gcr.hashing.chunks import TILE_BYTES as CHUNK
from gcr.image.chunks.chunk import NAME_BYTES
from gcr.image.files import ahead
from gcr.image.files.manifest import Manifest
from gcr.image.files.references import ZEROS
from gcr.image.pack import writer as packing
from gcr.image.pack.pace import Packing
from gcr.image.pack.writer import PackWriter, _File
from gcr.image.read.places import checked_places
from gcr.image.store.store import Store
from gcr.image.write import newpacks, part
from gcr.image.write.joining import joined
from gcr.image.write.part import PartWriter
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import StoreUnusable
from gcr.testing.machine import PATIENCE

FULL, ROW = 4 * CHUNK, 2 * CHUNK
BIG = [bytes_of(1, 19 * CHUNK + 500), bytes(CHUNK), bytes_of(2, 9 * CHUNK)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "is_memory", lambda _fd: True)  # on a machine with a small /dev/shm it is on a disk
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {*range(3)})
    monkeypatch.setattr(newpacks, "FULL", FULL)
    monkeypatch.setattr(newpacks, "ROW", ROW)
    monkeypatch.setattr(part, "GROUP_BYTES", CHUNK)


def written(store: Store, name: str, data: Sequence[bytes] = BIG, packing: Packing = "plain") -> Manifest:
    with ImageWriter(store, name, threads=3, chunk_bytes=CHUNK, packing=packing) as writer:
        writer.add((mapped(each), ()) for each in data)
        return writer.commit(described(name, [*map(len, data)], chunk_bytes=CHUNK))


def left(store: Store) -> list[str]:
    return sorted(path.name for path in store.packs.folder.iterdir())


pieces = st.lists(st.tuples(st.integers(0, 30), st.sampled_from([CHUNK, 700])), min_size=1, max_size=40)


@settings(deadline=None, max_examples=25)
@given(pieces, st.integers(1, 5), st.integers(1, 5), st.integers(1, 9), st.sampled_from([*CIPHERS]))
def test_each_chunk_is_in_one_pack_once_and_where_its_reference_says(
    made: list[tuple[int, int]], full: int, row: int, group: int, cipher: str
) -> None:
    """Chunk 0 is zeros; some chunks occur again."""
    data = [bytes(size) if not seed else bytes_of(seed, size) for seed, size in made]
    patch = pytest.MonkeyPatch()
    with TemporaryDirectory() as folder, patch.context() as patched:
        patched.setattr(newpacks, "FULL", full * CHUNK)
        patched.setattr(newpacks, "ROW", row * CHUNK)
        patched.setattr(part, "GROUP_BYTES", group * CHUNK)
        store = Store(Path(folder) / "store", CIPHERS[cipher])
        manifest = written(store, "warm", data)
        packs = [store.packs.reader(pack) for pack in manifest.packs]
        names = [name for pack in packs for name, *_ in pack.record.iter_unpack(pack.index)]
        assert len(names) == len({*names}) == len({each for each in data if any(each)})
        checked_places(store, manifest, store.images.references(manifest), packs)
        assert all(len(pack.chunks) for pack in packs) and len(left(store)) == len(packs)
        assert manifest.costs.bytes_written == sum(map(len, {each for each in data if any(each)}))
        assert read(store, "warm") == data
        check(store, "warm")


def test_a_pack_is_begun_once_all_are_full_and_no_more_than_there_are_cores(store: Store) -> None:
    for chunks, packs in ((1, 1), (4, 1), (5, 2), (8, 2), (9, 3), (40, 3)):
        manifest = written(store, f"i{chunks}", [bytes_of(chunks, chunks * CHUNK)])
        assert len(manifest.packs) == packs, chunks
        sizes = [len(store.packs.reader(pack).chunks) * CHUNK for pack in manifest.packs]
        assert sum(sizes) == chunks * CHUNK and max(sizes) - min(sizes) <= FULL
        assert chunks < 40 or max(sizes) - min(sizes) <= ROW


def test_chunks_that_follow_each_other_lie_in_rows(store: Store) -> None:
    manifest = written(store, "warm", [bytes_of(1, 40 * CHUNK)])
    references = store.images.references(manifest)
    packs = [store.packs.reader(pack) for pack in manifest.packs]
    places = checked_places(store, manifest, references, packs)
    runs = [*places.parts(0, len(places.sizes))]
    assert len(runs) > 10, "all packs take part"
    assert all(each.end - each.first >= ROW // CHUNK for each in runs)


@pytest.mark.parametrize("why", ["on a disk", "one core"])
def test_elsewhere_an_image_has_one_pack(store: Store, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "on a disk":
        monkeypatch.setattr(packing, "is_memory", lambda _fd: False)
    else:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {7})
    assert len(written(store, "warm").packs) == 1
    assert read(store, "warm") == BIG


def test_a_compressed_image_has_one_pack(store: Store) -> None:
    assert len(written(store, "warm", packing="compressed").packs) == 1
    assert len(written(store, "again", [bytes_of(9, 19 * CHUNK)], packing="sampled").packs) == 3, "it is plain"
    assert read(store, "warm") == BIG
    check(store, "warm")


def test_packs_are_written_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write to each of three waits until all three are under way."""
    met, real, seen = Barrier(3), _File.write, set[Path]()

    def write(self: _File, at: int, data: memoryview) -> None:
        if at and self.path not in seen and threading.current_thread().name.startswith("gcr-fill"):
            seen.add(self.path)
            met.wait(PATIENCE)
        real(self, at, data)

    monkeypatch.setattr(_File, "write", write)
    written(store, "warm")
    assert len(seen) == 3


def fails_at(number: int, real: Callable[..., Any], count: list[int]) -> Callable[..., Any]:
    def act(*given: Any) -> Any:
        count[0] += 1
        if count[0] == number + 1:
            raise OSError(errno.ENOSPC, "the memory is full")
        return real(*given)

    return act


@pytest.mark.parametrize(
    "where, what",
    [(_File, "write"), (_File, "sync"), (PackWriter, "__init__"), (PackWriter, "place"), (PackWriter, "publish")],
)
def test_a_failure_at_any_of_its_steps_leaves_no_file(tmp_path: Path, where: type, what: str) -> None:
    """But a whole pack with its final name, where another could not have its own: it goes with the next clean-up."""
    number, done = 0, False
    while not done:
        before, store = {*threading.enumerate()}, Store(tmp_path / f"store{number}")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(where, what, fails_at(number, getattr(where, what), count := [0]))
            try:
                written(store, "warm")
            except StoreUnusable as error:
                assert "the memory is full" in str(error)
                assert len(left(store)) == (count[0] - 1 if what == "publish" else 0)
                assert all(name.endswith(".pack") for name in left(store)) and store.images.names() == []
                store.clean()
                assert left(store) == []
            done = count[0] <= number
        assert {*threading.enumerate()} <= before
        number += 1
    assert number >= 3 and store.images.names() == ["warm"]


def test_an_image_that_is_given_up_leaves_no_file(store: Store) -> None:
    with pytest.raises(KeyError), ImageWriter(store, "warm", chunk_bytes=CHUNK) as writer:
        writer.add((mapped(each), ()) for each in BIG)
        assert len(left(store)) == 3
        raise KeyError
    assert left(store) == []


def test_all_packs_so_far_go_ahead(store: Store) -> None:
    with ImageWriter(store, "warm", threads=3, chunk_bytes=CHUNK) as writer:
        for number, data in enumerate(BIG, 1):
            writer.add([(mapped(data), ())])
            if number < 3:
                writer.send_ahead()
        paths = sorted((store.path / "images").glob("warm.ahead*"))
        noted = tuple(ahead.noted(path.read_bytes(), path) for path in paths)
        assert len(noted) == 3 and all(store.packs.has(pack) for pack in noted)
        manifest = writer.commit(described("warm", [*map(len, BIG)], chunk_bytes=CHUNK))
    assert {*noted} < {*manifest.packs} and len(manifest.packs) == 6 == len(left(store))
    assert read(store, "warm") == BIG
    check(store, "warm")


def test_the_next_image_takes_chunks_of_each_pack_but_a_sparse_one(store: Store) -> None:
    """It has all chunks of the first pack, and one of the second."""
    first = written(store, "first", [bytes_of(1, 40 * CHUNK)])
    references = store.images.references(first)
    wanted = [n for n, pack in enumerate(references.packs) if pack == 0 or n == references.packs.index(1)]
    data = [bytes_of(1, 40 * CHUNK)[n * CHUNK : (n + 1) * CHUNK] for n in wanted]
    assert set(written(store, "user", data).packs) == {*first.packs[:2]}
    store.remove(["first"])
    manifest = written(store, "next", data)
    assert first.packs[0] in manifest.packs and first.packs[1] not in manifest.packs
    assert manifest.costs.bytes_written == CHUNK
    assert read(store, "next") == data
    check(store, "next")


def test_parts_of_several_packs_are_joined(plain: Store) -> None:
    """As ranks of a training do."""
    parts = list[part.Part]()
    for data in BIG[::2]:
        with PartWriter(plain, "step", chunk_bytes=CHUNK, packing="sampled") as writer:
            writer.add([(mapped(data), ())])
            parts.append(writer.finish())
    whole = joined(parts)
    assert len(whole.packs) == sum(len(each.packs) for each in parts) == 6
    assert whole.counts.written == whole.counts.stored == sum(map(len, BIG[::2]))
    for each in parts:
        assert each.pace and each.counts.stored <= each.pace.disk_bytes, "the pace is of all packs"
    numbers = [int.from_bytes(whole.references[at + NAME_BYTES :][:4], "little") for at in range(0, 29 * 40, 40)]
    assert {*numbers} == {*range(6)} and ZEROS not in numbers
    assert write(plain, "warm", [BIG[0]], chunk_bytes=CHUNK).costs.bytes_written == 0, "and they are known"
