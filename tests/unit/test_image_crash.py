"""A crash at any instant, with any part of what was not synced on the disk: old images are whole, a new one or none."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from unittest.mock import patch

import pytest

sys.path.insert(0, str(Path(__file__).parent / "exchange"))

from disk import Disk
from imaging import CIPHERS, bytes_of, contents, read, write
from nodes import pulled, running

from gcr.image.crypto.cipher import PLAIN, Cipher
from gcr.image.pack import writer as packing
from gcr.image.read import fetching
from gcr.image.read.reader import ImageReader
from gcr.image.remote.pull import pull
from gcr.image.remote.push import push
from gcr.image.remote.transfer import Transfer
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged

OLD = [bytes_of(1, 9000), bytes_of(2, 5000)]
NEW = [bytes_of(1, 9000), bytes_of(3, 9000), bytes(100)]


Images = dict[str, list[bytes]]


@pytest.fixture(autouse=True)
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of states are read: starting the threads of a reader would take longer than all else."""
    monkeypatch.setattr(fetching, "READERS", 1)
    monkeypatch.setattr(fetching, "COMPARERS", 1)


def checked(store: Store, name: str) -> list[bytes]:
    with ImageReader(store, name) as reader:
        assert sum(reader.check()) > 0
        return contents(reader)


def survives(
    root: Path, act: Callable[[Store], object], may_be: Images, must_be: Images, cipher: Cipher = PLAIN
) -> int:
    """Checks every state that a crash may leave; returns their number."""
    store = Store(root / "store", cipher)
    write(store, "old", OLD)
    disk = Disk(store.path)
    with disk.recorded():
        act(store)
    looked_at = 0
    for state in reversed([*disk.states()]):  # what is wrong is wrong at the end first
        looked_at += 1
        after = root / "after"
        state.write_to(after)
        found = Store(after, cipher)
        assert must_be.keys() <= set(found.images.names()) <= must_be.keys() | may_be.keys()
        for name in found.images.names():
            assert checked(found, name) == (must_be | may_be)[name]
        found.clean()
        assert {path.suffix for path in found.packs.folder.iterdir()} == {".pack"}
        for name in found.images.names():
            assert read(found, name) == (must_be | may_be)[name]
        rmtree(after)
    return looked_at


@pytest.mark.parametrize("room_from", [packing.ROOM_FROM, 0], ids=["small", "with room ahead"])
@pytest.mark.parametrize("cipher", CIPHERS.values(), ids=CIPHERS)
def test_while_an_image_is_written(
    tmp_path: Path, cipher: Cipher, room_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "ROOM_FROM", room_from)
    assert survives(tmp_path, lambda store: write(store, "new", NEW), {"new": NEW}, {"old": OLD}, cipher) > 70


SLOW = {"encrypted": pytest.mark.slow}
EITHER = pytest.mark.parametrize(
    "cipher", [pytest.param(cipher, id=name, marks=SLOW.get(name, ())) for name, cipher in CIPHERS.items()]
)


def pulling(root: Path, cipher: Cipher) -> Callable[[Store], object]:
    """Brings the new image from a store elsewhere."""
    source, away = Store(root / "source", cipher), (root / "away").as_uri()
    write(source, "new", NEW)
    push(source, "new", away, Transfer("push"))
    return lambda store: pull(store.path, "new", away, Transfer("pull"), cipher)


@EITHER
def test_while_an_image_is_pulled(tmp_path: Path, cipher: Cipher) -> None:
    assert survives(tmp_path, pulling(tmp_path, cipher), {"new": NEW}, {"old": OLD}, cipher) > 70


@pytest.mark.slow
@EITHER
def test_while_an_image_is_pulled_from_a_node(tmp_path: Path, cipher: Cipher) -> None:
    """The notes of the pull may be there after the crash, and count for nothing; the next clean-up takes them."""
    source = Store(tmp_path / "source", cipher)
    write(source, "new", NEW)
    with running(source.path) as node:
        assert survives(tmp_path, lambda store: pulled(store, [node], "new"), {"new": NEW}, {"old": OLD}, cipher) > 70


def pushing(root: Path, cipher: Cipher) -> Callable[[Store], object]:
    """Sends the new image from another store into this one; its disk may fail."""
    source = Store(root / "source", cipher)
    write(source, "new", NEW)
    return lambda store: push(source, "new", store.path.as_uri(), Transfer("push"))


@EITHER
def test_while_an_image_is_pushed_into_a_folder(tmp_path: Path, cipher: Cipher) -> None:
    assert survives(tmp_path, pushing(tmp_path, cipher), {"new": NEW}, {"old": OLD}, cipher) > 70


@pytest.mark.parametrize("bring", [pulling, pushing])
def test_while_a_damaged_pack_is_replaced(
    tmp_path: Path, bring: Callable[[Path, Cipher], Callable[[Store], object]]
) -> None:
    """It is known to be damaged until the other one is there for good."""
    act, store = bring(tmp_path, PLAIN), Store(tmp_path / "store")
    (theirs,) = Store(tmp_path / "source").packs.folder.iterdir()
    pack, whole = store.packs.folder / theirs.name, theirs.read_bytes()
    damaged = whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]
    pack.write_bytes(damaged)
    store.packs.distrust(pack)
    disk, bad = Disk(store.path), pack.with_suffix(".pack.bad")
    with pack.open("rb"), bad.open("rb"), disk.recorded():  # open: or another file would get the same inode
        act(store)
    assert pack.read_bytes() == whole and not bad.exists()
    for state in disk.states():
        state.write_to(tmp_path / "after")
        found = Store(tmp_path / "after")
        assert (found.packs.folder / pack.name).read_bytes() == whole or (found.packs.folder / bad.name).exists()
        assert [read(found, name) for name in found.images.names()] in ([], [NEW])
        rmtree(tmp_path / "after")


def test_an_unsynced_pack_is_synced_by_a_push(tmp_path: Path) -> None:
    """Files of the image lie in the folder under their names, of unknown origin."""
    act, store, source = pushing(tmp_path, PLAIN), Store(tmp_path / "store"), tmp_path / "source"
    disk = Disk(store.path)
    with store.used(), disk.recorded():  # no cleaner runs
        for theirs in (*source.glob("packs/*.pack"), source / "images/new.chunks", source / "images/new.hashes"):
            fd = os.open(store.path / theirs.relative_to(source), os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(fd, theirs.read_bytes())
            os.close(fd)
        act(store)
    for state in disk.last_states():
        state.write_to(tmp_path / "after")
        assert read(Store(tmp_path / "after"), "new") == NEW
        rmtree(tmp_path / "after")


def test_once_it_was_written_it_is_there(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    write(store, "old", OLD)
    disk = Disk(store.path)
    with disk.recorded():
        write(store, "new", NEW)
    for number, state in enumerate(disk.last_states()):
        state.write_to(tmp_path / str(number))
        assert read(Store(tmp_path / str(number)), "new") == NEW


def test_while_an_empty_store_becomes_an_encrypted_one(tmp_path: Path) -> None:
    """No image is there before the mark that says what it is."""
    store, cipher, looked_at = Store(tmp_path / "store"), CIPHERS["encrypted"], 0
    disk = Disk(store.path)
    with disk.recorded():
        write(Store(store.path, cipher), "new", NEW)
    for state in disk.states():
        looked_at += 1
        state.write_to(tmp_path / "after")
        found = Store(tmp_path / "after", cipher)
        assert [read(found, name) for name in found.images.names()] in ([], [NEW])
        rmtree(tmp_path / "after")
    assert looked_at > 400


def test_while_one_is_removed(tmp_path: Path) -> None:
    def remove(store: Store) -> None:
        store.remove(["new"])

    store = Store(tmp_path / "store")
    write(store, "new", NEW)
    assert survives(tmp_path, remove, {"new": NEW}, {"old": OLD}) >= 5


SYNCED = {
    "pack": (".pack.new", ".pack"),  # a push syncs it again by its name
    "packs folder": ("packs",),
    "references": (".chunks",),
    "hashes": (".hashes",),
    "manifest": (".json.new",),
}


@pytest.mark.parametrize("how", ["written", "pushed"])
@pytest.mark.parametrize("left_out", SYNCED)
def test_a_sync_that_is_left_out_is_seen(tmp_path: Path, left_out: str, how: str) -> None:
    """The tests above would find each of them missing."""
    act = pushing(tmp_path, PLAIN) if how == "pushed" else lambda store: write(store, "new", NEW)

    def act_carelessly(store: Store) -> None:
        sync = os.fsync

        def forget(fd: int) -> None:
            if not str(Path(f"/proc/self/fd/{fd}").readlink()).endswith(SYNCED[left_out]):
                sync(fd)

        with patch.object(os, "fsync", forget):
            act(store)

    with pytest.raises((Damaged, AssertionError)):
        survives(tmp_path, act_carelessly, {"new": NEW}, {"old": OLD})


def test_a_pack_that_a_dead_writer_did_not_sync_is_synced_by_the_next_image_upon_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    write(store, "old", OLD)
    disk = Disk(store.path)
    with disk.recorded():
        with patch("gcr.image.write.publishing.sync", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            write(store, "dead", NEW)
        write(store, "new", NEW)
    synced, _loose = disk._divided(disk.log)
    synced.write_to(tmp_path / "after")
    assert read(Store(tmp_path / "after"), "new") == NEW
