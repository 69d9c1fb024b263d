"""Images on disk: what was written comes back, nothing is stored twice, and a changed bit is found wherever it is."""

import errno
import hashlib
import os
import random
import resource
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parent))

from image_example import DOCUMENT, documented, example
from imaging import CIPHERS, bytes_of, check, described, files, flipped, mapped, read, write

from gcr.cli.commands.verify import _all_checked
from gcr.cli.picture import facts
from gcr.hashing import HashKey
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.entry import BLOCK, Entry
from gcr.image.crypto.cipher import PLAIN, Cipher
from gcr.image.disk import locking
from gcr.image.disk.threads import AHEAD, all_of
from gcr.image.files.anatomy import origins, phases, repeated_bytes, stop_s
from gcr.image.files.manifest import Manifest
from gcr.image.pack.reader import PackReader
from gcr.image.pack.writer import PackWriter
from gcr.image.read.reader import ImageReader
from gcr.image.store.images import Images
from gcr.image.store.removal import Removal
from gcr.image.store.store import Store
from gcr.image.write.known import Known
from gcr.image.write.rate import Rate
from gcr.image.write.writer import Contents, ImageWriter
from gcr.image_helper.reading import refuse_impossible
from gcr.image_helper.service import remove as remove_image
from gcr.imageerrors import Damaged, ImageExists, ImageNeeded, NoSuchImage, StoreBusy, StoreUnusable, WrongImage
from gcr.protocol.operations.image import Remove

MANY = 3 * CHUNK_BYTES + 4096


@pytest.fixture(params=CIPHERS)
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    return Store(tmp_path / "store", CIPHERS[request.param])


@pytest.fixture
def plain(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_what_was_written_comes_back(store: Store) -> None:
    allocations = [bytes_of(1, MANY), bytes(MANY), bytes_of(2, 100), bytes_of(1, CHUNK_BYTES)]
    written = write(store, "warm", allocations)
    assert store.images.manifest("warm") == written
    assert read(store, "warm") == allocations
    check(store, "warm")
    zeros = MANY
    assert (written.costs.bytes_total, written.costs.bytes_zero) == (sum(map(len, allocations)), zeros)
    assert written.costs.bytes_written == MANY + 100, "a chunk is stored once, whichever allocation has it"


def test_an_image_may_have_more_packs_than_a_process_may_have_files(plain: Store) -> None:
    """An image that hardly changes is built upon hundreds of earlier ones."""
    allocations = [bytes_of(number, 100) for number in range(40)]
    for number in range(1, len(allocations) + 1):
        write(plain, f"i{number}", allocations[:number])
    last = f"i{len(allocations)}"
    assert len(plain.images.manifest(last).packs) == len(allocations)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    few = [number for number in range(1000) if number not in used][:20]
    resource.setrlimit(resource.RLIMIT_NOFILE, (few[-1], hard))
    try:
        check(plain, last)
        assert read(plain, last) == allocations
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_may_know_of_many_devices(store: Store) -> None:
    """Ten and more: as text they have another order than as numbers, and the digest is over both."""
    known = {ordinal: f"GPU-{ordinal}" for ordinal in range(16)}
    made = described("one", [5])

    def of_many(contents: Contents) -> Manifest:
        image = made(contents)
        (process,) = image.processes
        return replace(image, processes=(replace(process, table=replace(process.table, ordinals=known)),))

    with ImageWriter(store, "one", threads=1, key=HashKey.random()) as writer:
        writer.add([(mapped(b"bytes"), {})])
        writer.commit(of_many)
    (process,) = store.images.manifest("one").processes
    assert process.table.ordinals == known


def test_an_image_of_the_same_bytes_writes_none(store: Store) -> None:
    allocations = [bytes_of(1, MANY), bytes(MANY)]
    first, second = (write(store, name, allocations) for name in ("one", "two"))
    assert (first.costs.bytes_written, second.costs.bytes_written) == (MANY, 0)
    assert second.packs == first.packs
    assert read(store, "two") == allocations


def test_what_is_zero_is_stored_nowhere(store: Store) -> None:
    write(store, "nothing", [bytes(MANY)])
    assert files(store) == ["images/nothing.chunks", "images/nothing.hashes", "images/nothing.json"]
    assert read(store, "nothing") == [bytes(MANY)]


names = st.builds(lambda first, rest: bytes([first] * 8 + [rest] * 24), st.integers(0, 3), st.integers(0, 40))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(names, unique=True, max_size=30), max_size=4), st.lists(names))
@pytest.mark.parametrize("cipher", CIPHERS.values(), ids=CIPHERS)
def test_a_chunk_is_found_in_the_first_pack_that_has_it(
    cipher: Cipher, packs: list[list[bytes]], others: list[bytes]
) -> None:
    """Also where many names begin alike."""
    with TemporaryDirectory() as folder:
        known, expected = Known(), dict[bytes, tuple[str, int]]()
        for names in packs:
            pack = packed(Path(folder), names, cipher)
            known.add(pack)
            for entry in pack.entries:
                expected.setdefault(entry.name, (pack.pack.id, entry.block))
        for name in {*others, *expected}:
            assert known.find(name) == expected.get(name)


def packed(folder: Path, names: Sequence[bytes], cipher: Cipher = PLAIN) -> PackReader:
    """A pack that says it has chunks of these names."""
    writer = PackWriter(folder, cipher, BLOCK)
    entries = writer.place([(name, 1) for name in names])
    if cipher is not PLAIN:  # an encrypted index has a tag of each
        writer.write(entries, [mapped(b"x") for _ in entries])
    return PackReader(folder / f"{writer.finish().id}.pack", cipher)


def test_what_a_store_has_takes_little_memory(tmp_path: Path) -> None:
    """Measures an image's writer before it writes: a store of 100 TiB has 400 million chunks."""
    many = 50_000
    pack = packed(tmp_path, [hashlib.sha256(number.to_bytes(8)).digest() for number in range(many)])
    tracemalloc.start()
    try:
        known = Known()
        known.add(pack)
        assert known.find(pack.index[:32]) == (pack.pack.id, 1)
        assert tracemalloc.get_traced_memory()[1] < 100 * many
    finally:
        tracemalloc.stop()


def test_an_image_that_nobody_could_read_is_not_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gcr.image.write.writer.MOST_MANIFEST", 100)
    with pytest.raises(StoreUnusable, match="so many allocations"):
        write(store, "warm", [bytes_of(1, 100)])
    monkeypatch.undo()
    with pytest.raises(Damaged, match="no text"):
        write(store, "warm", [bytes_of(1, 100)], job="a\nb")
    assert store.images.names() == []


def test_an_image_that_is_removed_while_others_clean_up_is_no_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "warm", [bytes_of(1, 100)])
    monkeypatch.setattr(Images, "names", lambda _images: ["gone", "warm"])
    assert store.clean() == 0
    check(store, "warm")


def test_a_folder_in_the_place_of_what_the_dead_have_left_stops_nobody(store: Store) -> None:
    folders = [
        store.images.folder / "gone.chunks",
        store.images.folder / "gone.json.new",
        store.packs.folder / f"{'0' * 32}.pack.new",
    ]
    for folder in folders:
        folder.mkdir(mode=0o700)
    write(store, "warm", [bytes_of(1, 100)])
    assert store.remove(["warm"]) > 0
    assert all(folder.is_dir() for folder in folders)


def test_an_image_whose_manifest_is_a_folder_is_not_removed_nor_any_beside_it(store: Store) -> None:
    write(store, "warm", [bytes_of(1, 100)])
    (store.images.folder / "wrong.json").mkdir(mode=0o700)
    (store.images.folder / "link.json").symlink_to("nowhere")
    with pytest.raises(Damaged, match="a folder"):
        store.remove(["warm", "link", "wrong"])
    check(store, "warm")
    store.remove(["link"])
    assert store.images.names() == ["warm", "wrong"]
    assert store.remove(["warm"]) == 0, "nobody knows what the other one needs"


IMPOSSIBLE = {
    "two in one place": lambda handles: [replace(each, offset=0) for each in handles],
    "beyond its memory": lambda handles: [handles[0], replace(handles[1], offset=1 << 40)],
    "no memory on a device": lambda handles: [handles[0], replace(handles[1], device="GPU-2")],
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_nobody_writes_where_an_image_says_and_no_memory_is(plain: Store, what: str) -> None:
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


def test_a_name_is_taken_once(store: Store) -> None:
    write(store, "warm", [bytes_of(1, 100)])
    with pytest.raises(ImageExists):
        write(store, "warm", [bytes_of(2, 100)])
    assert read(store, "warm") == [bytes_of(1, 100)]
    with ImageWriter(store, "other"), pytest.raises(ImageExists, match="just now"):
        ImageWriter(store, "other").__enter__()


def test_what_was_not_committed_is_not_there(store: Store) -> None:
    write(store, "warm", [bytes_of(1, 100)])
    before = files(store)
    with ImageWriter(store, "other") as writer:
        writer.add([(mapped(bytes_of(2, MANY)), {})])
    assert store.images.names() == ["warm"]
    store.clean()
    assert files(store) == before


def test_what_another_image_needs_stays(store: Store) -> None:
    common, own = bytes_of(1, MANY), bytes_of(2, MANY)
    write(store, "one", [common])
    write(store, "two", [common, own])
    store.remove(["one"])
    assert read(store, "two") == [common, own]
    with pytest.raises(NoSuchImage):
        read(store, "one")
    with pytest.raises(NoSuchImage):
        store.remove(["two", "one"])
    assert store.images.names() == ["two"]
    assert store.remove(["two"]) > 2 * MANY
    assert files(store) == []


@pytest.mark.parametrize("busy", [False, True], ids=["nobody else", "others at work"])
def test_an_image_that_has_taken_a_doomed_name_stays(store: Store, busy: bool) -> None:
    """The removal was decided by the former image. The packs of the new one stay as well."""
    write(store, "old", [bytes_of(2, MANY)])
    write(store, "warm", [bytes_of(1, MANY)])
    seals = {name: store.images.manifest(name).seal() for name in ("old", "warm")}
    store.remove(["warm"])
    write(store, "warm", [bytes_of(3, MANY)])
    with store.used() if busy else nullcontext():
        store.remove([*seals], seals=seals)
    assert store.images.names() == ["warm"]
    store.clean()
    assert read(store, "warm") == [bytes_of(3, MANY)]


def test_an_image_that_takes_the_name_while_the_lock_is_waited_for_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds also if the caller gave no more than the name."""
    write(store, "warm", [bytes_of(1, MANY)])
    monkeypatch.setattr(Removal, "_is_only_copy", lambda *_: True)

    @contextmanager
    def locked(path: Path, how: int, patience: float | None) -> Iterator[None]:
        monkeypatch.undo()
        Store(path, store.cipher).remove(["warm"])
        write(Store(path, store.cipher), "warm", [bytes_of(2, MANY)])
        with locking.locked(path, how, patience):
            yield

    monkeypatch.setattr("gcr.image.store.removal.locked", locked)
    store.remove(["warm"], lambda: {"warm": "a job that has but the new one"})
    assert read(store, "warm") == [bytes_of(2, MANY)]


def test_a_helpers_image_is_withdrawn_and_no_other_of_its_name(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write(plain, "warm", [bytes_of(1, MANY)], created=1.0)
    real = Store.remove

    def remove(self: Store, *arguments: Any, **options: Any) -> int:
        monkeypatch.undo()
        self.remove(["warm"])
        write(self, "warm", [bytes_of(2, MANY)], created=2.0)
        return real(self, *arguments, **options)

    monkeypatch.setattr(Store, "remove", remove)
    remove_image(Remove(str(plain.path), False, "warm", 1.0), [])
    assert read(plain, "warm") == [bytes_of(2, MANY)]
    remove_image(Remove(str(plain.path), False, "warm", 2.0), [])
    assert plain.images.names() == []


def test_what_a_newer_gcr_wrote_may_be_all_that_a_job_has(plain: Store) -> None:
    write(plain, "warm", [bytes_of(1, 100)])
    path = plain.images.folder / "warm.json"
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(ImageNeeded):
        plain.remove(["warm"], lambda: {"warm": "llm"})
    assert plain.images.names() == ["warm"]


@pytest.mark.parametrize("again", [False, True], ids=["removed", "removed and written again"])
def test_an_image_that_goes_while_it_is_opened_is_not_damaged(
    store: Store, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    write(store, "warm", [bytes_of(1, MANY)])
    real = Images.manifest

    def manifest(self: Images, name: str) -> Manifest:
        found = real(self, name)
        monkeypatch.setattr(Images, "manifest", real)
        other = Store(store.path, store.cipher)
        other.remove(["warm"])
        if again:
            write(other, "warm", [bytes_of(2, MANY)])
        else:
            (store.images.folder / "warm.chunks").unlink()
        return found

    monkeypatch.setattr(Images, "manifest", manifest)
    with pytest.raises(NoSuchImage, match="removed just now"):
        read(store, "warm")


def test_nothing_goes_while_somebody_writes_or_reads(store: Store) -> None:
    common = bytes_of(1, MANY)
    write(store, "one", [common])
    with ImageWriter(store, "two") as writer:
        writer.add([(mapped(common), {})])
        assert store.remove(["one"]) == 0
        with pytest.raises(StoreBusy):
            store.clean()
        writer.commit(described("two", [MANY]))
    with ImageReader(store, "two") as reader:
        assert store.remove(["two"]) == 0
        target = bytearray(MANY)
        reader.read(7, "GPU-1", 0, memoryview(target))
        assert target == common
    assert store.clean() > MANY


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


def test_a_damaged_chunk_is_given_to_nobody(store: Store) -> None:
    write(store, "warm", [bytes_of(1, MANY)])
    (pack,) = store.packs.folder.iterdir()
    flipped(pack, 2 * BLOCK, 0)
    with pytest.raises(Damaged, match=pack.name):
        read(store, "warm")
    write(store, "again", [bytes_of(2, MANY)])
    assert read(store, "again") == [bytes_of(2, MANY)]


@settings(max_examples=40, deadline=None)
@given(
    cipher=st.sampled_from(list(CIPHERS)),
    chains=st.lists(
        st.lists(
            st.tuples(st.integers(0, 3), st.sampled_from([1, 4095, 4096, CHUNK_BYTES, CHUNK_BYTES + 1])), max_size=4
        ),
        min_size=1,
        max_size=4,
    ),
    doomed=st.sets(st.integers(0, 3)),
)
def test_whatever_is_written_and_removed_the_rest_is_whole(
    tmp_path_factory: pytest.TempPathFactory, cipher: str, chains: list[list[tuple[int, int]]], doomed: set[int]
) -> None:
    store = Store(tmp_path_factory.mktemp("any") / "store", CIPHERS[cipher])
    images = {f"i{n}": [bytes_of(s, size) if s else bytes(size) for s, size in chain] for n, chain in enumerate(chains)}
    for name, allocations in images.items():
        write(store, name, allocations)
    store.remove([f"i{n}" for n in doomed if f"i{n}" in images])
    for name in store.images.names():
        assert read(store, name) == images[name]
        check(store, name)
    assert set(store.images.names()) == images.keys() - {f"i{n}" for n in doomed}


def test_one_of_a_newer_format_is_named_as_such(plain: Store) -> None:
    store = plain
    write(store, "warm", [bytes_of(1, 100)])
    path = store.images.folder / "warm.json"
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(WrongImage, match="format 2; this gcr reads 1"):
        read(store, "warm")
    with pytest.raises(WrongImage):
        store.clean()
    assert len(files(store)) == 4, "what nobody understands is not taken away"


def test_the_example_in_the_document_is_what_is_written() -> None:
    assert documented(DOCUMENT.read_text()) == example()


def test_no_faster_than_asked() -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    rate = Rate(100.0, lambda: now[0], sleep)
    for _ in range(3):
        rate.spend(50)
    assert (slept, now) == ([0.5, 0.5], [1.0])
    now[0] = 9.0  # what was not used is not saved up
    rate.spend(1000)
    rate.spend(1)
    assert slept[2:] == [10.0]
    Rate(None, sleep=sleep).spend(1 << 40)
    assert len(slept) == 3


def test_a_folder_with_somebodys_files_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir(mode=0o700)
    (tmp_path / "images" / "wedding.jpg").write_text("")
    tmp_path.chmod(0o700)
    with pytest.raises(StoreUnusable, match="no store"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["images", "wedding.jpg"]


def test_what_is_not_ours_stays(store: Store) -> None:
    write(store, "warm", [bytes_of(1, 100)])
    names = ("images/Two.json", "images/._warm.json", "packs/notes.txt", "images/dir")
    strangers = [store.path / name for name in names]
    for path in strangers[:3]:
        path.write_text("")
    strangers[3].mkdir()
    assert store.images.names() == ["warm"]
    store.remove(["warm"])
    assert all(path.exists() for path in strangers)
    assert len(list(store.packs.folder.iterdir())) == 1
    write(store, "warm", [bytes_of(1, 100)])


def test_what_dead_writers_left_goes_before_another_writes(store: Store) -> None:
    for left in (
        "packs/00112233445566778899aabbccddeeff.pack.new",
        "images/dead.json.new",
        "images/dead.chunks",
        "images/dead.hashes",
    ):
        (store.path / left).write_text("x" * 1000)
    write(store, "warm", [bytes_of(1, 100)])
    assert sorted(path.name for path in store.images.folder.iterdir()) == ["warm.chunks", "warm.hashes", "warm.json"]
    assert len(list(store.packs.folder.iterdir())) == 1


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
        writer.add([(mapped(data[0]), {})])
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
            writer.add([(mapped(data), {})])
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


def test_small_allocations_are_written_together(store: Store) -> None:
    """Each by itself would keep one thread busy, and the disk with small writes."""
    data, writes, real = [bytes_of(seed, CHUNK_BYTES + seed) for seed in range(1, 16)], [0], PackWriter.write

    def counted(self: PackWriter, entries: Sequence[Entry], some: Sequence[memoryview]) -> None:
        writes[0] += 1
        real(self, entries, some)

    with patch.object(PackWriter, "write", counted):
        write(store, "warm", data)
    assert writes[0] == 1
    assert read(store, "warm") == data


def test_what_is_ahead_is_bounded_and_a_failure_is_the_last_of_it() -> None:
    made, done = [0], [0]

    def jobs() -> Iterator[int]:
        for number in range(6 * AHEAD):
            made[0] += 1
            yield number

    def work(number: int) -> None:
        time.sleep(0.001)
        assert made[0] <= done[0] + 2 * AHEAD + 3  # two threads, and the one that is being made
        done[0] += 1
        if number == 2 * AHEAD:
            raise KeyError(number)

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(2) as other:
        with pytest.raises(KeyError):
            all_of(jobs(), (one, lambda number: number), (other, work))
        over = done[0]
        assert 2 * AHEAD < over < 5 * AHEAD
        time.sleep(0.02)
        assert done[0] == over


def test_when_a_write_fails_nobody_looks_at_its_memory_any_more(store: Store) -> None:
    """It is unmapped next."""
    working, real = [0, 0], PackWriter.write

    def write_some(self: PackWriter, entries: object, data: object) -> None:
        working[0] += 1
        try:
            if working[1] == 0:
                working[1] = 1
                raise OSError(errno.ENOSPC, "no room")
            time.sleep(0.2)
            real(self, entries, data)  # type: ignore[arg-type]
        finally:
            working[0] -= 1

    with patch.object(PackWriter, "write", write_some), ImageWriter(store, "warm", threads=4) as writer:
        with pytest.raises(StoreUnusable):
            writer.add([(mapped(bytes_of(1, 64 * CHUNK_BYTES * 8)), {})])
        assert working[0] == 0


@pytest.mark.parametrize("suffix", [".pack", ".json", ".chunks", ".hashes"])
def test_a_file_with_more_in_it_is_found_and_not_called_shorter(store: Store, suffix: str) -> None:
    write(store, "warm", [bytes_of(1, MANY)])
    (path,) = (store.path / name for name in files(store) if name.endswith(suffix))
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(Damaged) as caught:
        check(store, "warm")
    assert "shorter" not in caught.value.message


def test_what_a_first_image_has_twice_was_not_in_the_store_before(store: Store) -> None:
    write(store, "warm", [bytes_of(1, MANY), bytes_of(1, MANY), bytes(MANY)])
    write(store, "next", [bytes_of(1, MANY)])
    whole = {name: store.images.manifest(name) for name in ("warm", "next")}
    twice = {name: repeated_bytes(each, store.images.references(each)) for name, each in whole.items()}
    assert twice == {"warm": MANY, "next": 0}
    assert origins(whole["warm"], MANY) == {"zero": MANY, "repeated": MANY, "shared": 0, "written": MANY}
    assert origins(whole["next"], 0) == {"zero": 0, "repeated": 0, "shared": MANY, "written": 0}


def test_how_long_the_program_stood_still_is_told(store: Store) -> None:
    """The time is told for a checkpoint after which the program ran on, too."""
    manifest = write(store, "warm", [bytes_of(1, MANY)])
    live = replace(
        manifest, timings={"stop": 1.0, "quiesced": 1.5, "snapshotted": 1.75, "running": 2.0, "drained": 9.0}
    )
    assert (stop_s(manifest), stop_s(live)) == (None, 1.0)
    assert ("stopped for", "1.00 s") in [*facts(live)]
    assert [(each.name, each.begin) for each in phases(live)] == [("quiesce", 1.0), ("snapshot", 1.5), ("drain", 1.75)]
