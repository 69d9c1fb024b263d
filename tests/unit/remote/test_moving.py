"""Stores elsewhere, here in a folder: what was pushed comes back, and nothing moves twice."""

import stat
from pathlib import Path

import pytest
from imaging import CIPHERS, brought, check, folder_of, imaged, read, write
from remotes import COMMON, OTHER, OWN, contents, pulled, pushed, rewritten

from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.crypto.cipher import PLAIN, Cipher
from gcr.image.remote.pull import pull
from gcr.image.remote.push import Moved
from gcr.image.remote.transfer import Transfer
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, ImageExists, NoSuchImage, StoreUnusable, WrongKey


@pytest.mark.parametrize("field", ["source", "costs", "another"])
def test_a_field_that_no_image_has_is_damage(store: Store, field: str) -> None:
    write(store, "warm", [COMMON])
    path = store.images.folder / "warm.json"
    rewritten(path, store.cipher, lambda image: image.update({field: {}}))
    with pytest.raises(Damaged, match="field"):
        store.images.manifest("warm")


def test_what_was_pushed_comes_back_and_is_a_store_itself(store: Store, other: Store, away: Path) -> None:
    manifest = write(store, "warm", [COMMON, bytes(CHUNK_BYTES), OWN])
    sent = pushed(store, away)
    assert (sent.packs, sent.packs_moved, sent.bytes_moved) == (1, 1, manifest.packs[0].bytes)
    assert pulled(other, away) == sent
    for copy in (other, Store(away, store.cipher)):
        assert copy.images.manifest("warm") == manifest
        assert read(copy, "warm") == [COMMON, bytes(CHUNK_BYTES), OWN]
        check(copy, "warm")
    assert contents(store.path) == contents(other.path) == contents(away)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in away.rglob("*") if path.is_file()}
    assert modes == {0o600}


def test_files_of_processes_are_pushed_and_come_back(store: Store, other: Store, away: Path, tmp_path: Path) -> None:
    files = {"pages-1.img": OWN + COMMON[:4096], "inventory.img": b"few"}
    manifest = imaged(store, "warm", folder_of(tmp_path / "in", files), [COMMON])
    pushed(store, away)
    pulled(other, away)
    assert other.images.manifest("warm") == manifest
    assert (brought(other, "warm", tmp_path / "out"), read(other, "warm")) == (files, [COMMON])
    check(other, "warm")


@pytest.mark.parametrize(
    ("here", "there"), [(CIPHERS["encrypted"], PLAIN), (PLAIN, CIPHERS["encrypted"]), (CIPHERS["encrypted"], OTHER)]
)
def test_between_stores_of_other_keys_nothing_moves(tmp_path: Path, away: Path, here: Cipher, there: Cipher) -> None:
    ours, theirs = Store(tmp_path / "store", here), Store(tmp_path / "other", there)
    write(ours, "warm", [COMMON])
    write(theirs, "theirs", [OWN])
    pushed(theirs, away, "theirs")
    before = contents(tmp_path)
    with pytest.raises(WrongKey):
        pushed(ours, away)
    with pytest.raises(WrongKey):
        pulled(ours, away, "theirs")
    assert contents(tmp_path) == before
    pushed(ours, tmp_path / "away too")
    before = contents(tmp_path)
    with pytest.raises(WrongKey):  # what is there is ours, what is here is not
        pull(theirs.path, "warm", (tmp_path / "away too").as_uri(), Transfer("pull"), here)
    assert contents(tmp_path) == before


def test_an_image_of_nothing_is_moved(store: Store, other: Store, away: Path) -> None:
    write(store, "warm", [])
    assert pushed(store, away) == pulled(other, away) == Moved(0, 0, 0, 0)
    assert read(other, "warm") == []


def test_only_what_is_missing_moves(store: Store, other: Store, away: Path) -> None:
    write(store, "one", [COMMON])
    pushed(store, away, "one")
    pulled(other, away, "one")
    write(store, "warm", [COMMON, OWN])
    sent, fetched = pushed(store, away), pulled(other, away)
    assert sent == fetched
    assert (sent.packs, sent.packs_moved) == (2, 1)
    assert sent.bytes_moved < len(COMMON) < sent.bytes
    assert read(other, "warm") == [COMMON, OWN]


def test_an_image_that_is_there_is_left_alone_and_another_of_its_name_refused(
    store: Store, other: Store, away: Path
) -> None:
    write(store, "warm", [COMMON])
    write(other, "warm", [OWN])
    pushed(store, away)
    before, ours = contents(away), contents(other.path)
    assert pushed(store, away).packs_moved == pulled(store, away).packs_moved == 0
    for act in (pushed, pulled):
        with pytest.raises(ImageExists):
            act(other, away)
    assert contents(away) == before
    assert contents(other.path).items() - ours.items() <= {("images/warm.json.new", b"")}
    assert read(other, "warm") == [OWN]


def test_what_is_not_there_is_refused_and_nothing_is_made(store: Store, away: Path, tmp_path: Path) -> None:
    write(store, "warm", [COMMON])
    with pytest.raises(NoSuchImage):
        pushed(store, away, "cold")
    assert not away.exists()
    with pytest.raises(StoreUnusable):
        pull(tmp_path / "new", "warm", away.as_uri(), Transfer("pull"))
    pushed(store, away)
    with pytest.raises(NoSuchImage):
        pull(tmp_path / "new", "cold", away.as_uri(), Transfer("pull"))
    assert not (tmp_path / "new").exists()
