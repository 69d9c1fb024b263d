"""An image has its name alone; what others need or use stays, and what the dead have left goes."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imaging import CIPHERS, MANY, bytes_of, check, described, files, mapped, read, write

from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.disk import locking
from gcr.image.files.manifest import Manifest
from gcr.image.read.reader import ImageReader
from gcr.image.store.images import Images
from gcr.image.store.removal import Removal
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.image_helper.service import remove as remove_image
from gcr.imageerrors import ImageExists, ImageNeeded, NoSuchImage, StoreBusy, StoreUnusable
from gcr.protocol.operations.image import Remove

pytestmark = pytest.mark.on_disk


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
        writer.add([(mapped(bytes_of(2, MANY)), ())])
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


@pytest.mark.parametrize("busy", [False, True], ids=["alone", "others at work"])
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
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 9'))
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


def test_nothing_goes_while_an_image_is_written_or_read(store: Store) -> None:
    common = bytes_of(1, MANY)
    write(store, "one", [common])
    with ImageWriter(store, "two") as writer:
        writer.add([(mapped(common), ())])
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


@settings(max_examples=40)
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
