"""A changed bit is found wherever it is; nothing is built upon what is damaged, or read from it."""

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from imaging import MANY, bytes_of, check, described, files, flipped, mapped, read, write
from msgspec.structs import replace

from gcr.cli.commands.verify import _all_checked
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.entry import BLOCK, Entry
from gcr.image.files.manifest import Manifest
from gcr.image.pack.writer import PackWriter
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.image_helper.reading import refuse_impossible
from gcr.imageerrors import Damaged, NoSuchImage, WrongImage

pytestmark = pytest.mark.on_disk

IMPOSSIBLE = {
    "two in one place": lambda handles: [replace(each, offset=0) for each in handles],
    "beyond its memory": lambda handles: [handles[0], replace(handles[1], offset=1 << 40)],
    "no memory on a device": lambda handles: [handles[0], replace(handles[1], device="GPU-2")],
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_no_write_goes_where_an_image_says_and_no_memory_is(plain: Store, what: str) -> None:
    """Its digests may be right, and its table forged."""
    manifest = write(plain, "warm", [bytes_of(1, 100), bytes_of(2, 100)])
    (process,) = manifest.processes
    refuse_impossible(manifest)
    handles = tuple(IMPOSSIBLE[what](process.table.handles))
    forged = replace(manifest, processes=(replace(process, table=replace(process.table, handles=handles)),))
    with pytest.raises(Damaged, match=r"in the same place|where no memory is"):
        refuse_impossible(forged)


@pytest.mark.parametrize("wrong", [{"bytes_changed": []}, {"bytes_changed": False}, {"parent": 0}, {"parent": []}])
def test_what_is_as_false_as_nothing_is_not_nothing(plain: Store, wrong: dict[str, Any]) -> None:
    manifest = write(plain, "warm", [bytes_of(1, 100)])
    with pytest.raises(Damaged):
        Manifest.from_bytes(replace(manifest, costs=replace(manifest.costs, **wrong)).to_bytes(), "warm")


@pytest.mark.parametrize("size", [0, -1, 1000, 32 << 20, 1 << 40])
def test_chunks_of_a_size_that_there_is_not_are_refused(plain: Store, size: int) -> None:
    """Memory for one is taken before its bytes are known to be right."""
    manifest = write(plain, "warm", [bytes_of(1, 100)])
    with pytest.raises(Damaged, match=r"chunks of|a size"):
        Manifest.from_bytes(replace(manifest, chunk_bytes=size).to_bytes(), "warm")


def places(store: Store) -> Iterator[tuple[Path, int]]:
    """Every byte of the small files, and of packs those at the borders of every block."""
    for name in files(store):
        path, is_pack = store.path / name, name.endswith(".pack")
        for at in range(path.stat().st_size):
            if not is_pack or at % BLOCK in (0, 1, 7, 100, BLOCK - 1):
                yield path, at


def test_a_flipped_bit_anywhere_is_found(store: Store) -> None:
    """And the image is whole again once it is flipped back."""
    write(store, "warm", [bytes_of(1, CHUNK_BYTES + 4096 + 100), bytes(4096), bytes_of(3, 100)])
    rng = random.Random(7)
    for path, at in list(places(store)):
        bit = rng.randrange(8)
        flipped(path, at, bit)
        with pytest.raises((Damaged, WrongImage)):
            check(store, "warm")
        flipped(path, at, bit)
    check(store, "warm")


@pytest.mark.parametrize("suffix", [".pack", ".json", ".chunks", ".hashes"])
@pytest.mark.parametrize("left", [None, 0, 1, -1, -BLOCK])
def test_a_file_that_is_cut_off_or_gone_is_found(store: Store, suffix: str, left: int | None) -> None:
    write(store, "warm", [bytes_of(1, MANY)])
    (path,) = (store.path / name for name in files(store) if name.endswith(suffix))
    if left is None:
        path.unlink()
    else:
        size = path.stat().st_size
        os.truncate(path, max(0, left if left >= 0 else size + left))
    with pytest.raises((Damaged, NoSuchImage)):
        check(store, "warm")


def test_a_damaged_chunk_is_given_to_no_reader(store: Store) -> None:
    write(store, "warm", [bytes_of(1, MANY)])
    (pack,) = store.packs.folder.iterdir()
    flipped(pack, 2 * BLOCK, 0)
    with pytest.raises(Damaged, match=pack.name):
        read(store, "warm")
    write(store, "again", [bytes_of(2, MANY)])
    assert read(store, "again") == [bytes_of(2, MANY)]


def test_one_of_a_newer_format_is_named_as_such(plain: Store) -> None:
    store = plain
    write(store, "warm", [bytes_of(1, 100)])
    path = store.images.folder / "warm.json"
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 9'))
    with pytest.raises(WrongImage, match="format 9; this gcr reads 1 to 5"):
        read(store, "warm")
    with pytest.raises(WrongImage):
        store.clean()
    assert len(files(store)) == 4, "an unknown file is not taken away"


def test_nothing_is_built_upon_what_was_found_damaged(store: Store) -> None:
    data = [bytes_of(1, 2 * CHUNK_BYTES)]
    write(store, "one", data)
    (pack,) = store.packs.folder.iterdir()
    damaged = bytearray(pack.read_bytes())
    damaged[CHUNK_BYTES] ^= 1
    pack.write_bytes(damaged)
    write(store, "two", data)  # no reader has looked yet
    with pytest.raises(Damaged):
        read(store, "two")
    assert write(store, "three", data).costs.bytes_written == 2 * CHUNK_BYTES
    assert read(store, "three") == data
    store.remove(["one", "two"])
    assert len(list(store.packs.folder.iterdir())) == 1


def test_an_image_is_not_there_if_what_it_is_built_upon_is_found_damaged_meanwhile(store: Store) -> None:
    data = [bytes_of(1, 2 * CHUNK_BYTES)]
    write(store, "one", data)
    (pack,) = store.packs.folder.iterdir()
    with ImageWriter(store, "two") as writer:
        writer.add([(mapped(data[0]), ())])
        flipped(pack, CHUNK_BYTES, 3)
        with pytest.raises(Damaged):
            check(store, "one")
        with pytest.raises(Damaged, match="meanwhile"):
            writer.commit(described("two", [len(data[0])]))
    assert store.images.names() == ["one"]


def test_every_pack_is_looked_at_also_one_of_the_same_bytes_as_another(plain: Store) -> None:
    """Two writers at once do not know of each other's chunks: their packs have the same seal."""
    data = bytes_of(1, MANY)
    with ImageWriter(plain, "a") as one, ImageWriter(plain, "b") as other:
        for writer in (one, other):
            writer.add([(mapped(data), ())])
            writer.commit(described(writer.name, [MANY]))
    (a,), (b,) = plain.images.manifest("a").packs, plain.images.manifest("b").packs
    assert a.id != b.id and a.seal == b.seal
    flipped(plain.packs.folder / f"{b.id}.pack", 2 * BLOCK, 0)
    first, second = _all_checked(plain, (), True)[0]
    assert first["damaged"] is None and b.id in second["damaged"]


def test_what_the_disk_has_is_looked_at_and_not_what_is_in_memory(
    plain: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pack leaves the cache before a byte of its chunks is read."""
    write(plain, "warm", [bytes_of(1, MANY)])
    real, calls = os.posix_fadvise, []

    def advised(fd: int, offset: int, size: int, advice: int) -> None:
        calls.append((Path(f"/proc/self/fd/{fd}").readlink().suffix, offset, size, advice))
        real(fd, offset, size, advice)

    monkeypatch.setattr(os, "posix_fadvise", advised)
    check(plain, "warm")
    assert calls == [(".pack", 0, 0, os.POSIX_FADV_DONTNEED)]


def test_after_a_failure_there_is_no_image(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that got its place, and never came there, would be in it: also if the same is tried again."""
    data, real, failed = bytes_of(1, CHUNK_BYTES), PackWriter.write, list[int]()

    def write_once(self: PackWriter, entries: Sequence[Entry], pieces: Sequence[memoryview]) -> None:
        if not failed:
            failed.append(1)
            raise MemoryError
        real(self, entries, pieces)

    monkeypatch.setattr(PackWriter, "write", write_once)
    with ImageWriter(store, "warm") as writer:
        for _ in range(2):
            with pytest.raises(MemoryError):
                writer.put([(0, mapped(data))])
        with pytest.raises(MemoryError):
            writer.commit(described("warm", [CHUNK_BYTES]))
    assert store.images.names() == []


@pytest.mark.parametrize("suffix", [".pack", ".json", ".chunks", ".hashes"])
def test_a_file_with_more_in_it_is_found_and_not_called_shorter(store: Store, suffix: str) -> None:
    write(store, "warm", [bytes_of(1, MANY)])
    (path,) = (store.path / name for name in files(store) if name.endswith(suffix))
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(Damaged) as caught:
        check(store, "warm")
    assert "shorter" not in caught.value.message
