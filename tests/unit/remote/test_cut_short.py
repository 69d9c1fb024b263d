"""A pull that was cut short is taken up where it was; what it left waits a day."""

import os
import time
from pathlib import Path

import pytest
from imaging import check, files, flipped, read, write
from remotes import COMMON, OWN, contents, interrupted_after, pulled, pushed

from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.entry import BLOCK
from gcr.image.pack import format as packs
from gcr.image.remote.folder import Folder
from gcr.image.remote.pull import pull
from gcr.image.remote.remote import Remote
from gcr.image.remote.transfer import Transfer
from gcr.image.store.store import Store
from gcr.imageerrors import StoreBusy, StoreUnusable


@pytest.mark.parametrize("count", range(11))
def test_a_pull_that_was_cut_short_is_taken_up_where_it_was(
    store: Store, other: Store, away: Path, count: int, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    """Footer, index, header, then eight chunks and a bit."""
    write(store, "warm", [COMMON, OWN])
    pushed(store, away)
    with monkeypatch.context() as patch:
        interrupted_after(count, patch)
        with pytest.raises(StoreUnusable, match="dead"):
            pulled(other, away)
    assert other.images.names() == []
    transfer = Transfer("pull")
    moved = pull(other.path, "warm", away.as_uri(), transfer, other.cipher)
    brought = max(0, count - 3)
    assert moved.bytes_moved <= moved.bytes - brought * CHUNK_BYTES + BLOCK
    assert transfer.total <= moved.bytes - brought * CHUNK_BYTES
    assert read(other, "warm") == [COMMON, OWN]
    check(other, "warm")
    assert contents(other.path) == contents(store.path)


def test_what_is_wrong_in_an_unfinished_pack_is_brought_again(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    write(store, "warm", [COMMON, OWN])
    pushed(store, away)
    with monkeypatch.context() as patch:
        interrupted_after(10, patch)
        with pytest.raises(StoreUnusable):
            pulled(other, away)
    (unfinished,) = other.packs.folder.iterdir()
    for at in (0, BLOCK + 1, 3 * CHUNK_BYTES):
        flipped(unfinished, at, 0)
    pulled(other, away)
    check(other, "warm")


def test_a_pull_that_was_cut_short_goes_with_the_next_clean_up(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    interrupted_after(5, monkeypatch)
    with pytest.raises(StoreUnusable):
        pulled(other, away)
    assert other.clean() > CHUNK_BYTES
    assert files(other) == []


@pytest.mark.parametrize(("hours", "stays"), [(0, True), (23, True), (25, False), (-1, True), (-25, False)])
def test_what_a_pull_has_left_waits_a_day_for_the_next(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None, hours: int, stays: bool
) -> None:
    """Images that are written meanwhile do not take it away; a clock that was wrong does not keep it for ever."""
    write(store, "warm", [COMMON])
    pushed(store, away)
    with monkeypatch.context() as patch:
        interrupted_after(5, patch)
        with pytest.raises(StoreUnusable):
            pulled(other, away)
    (unfinished,) = other.packs.folder.iterdir()
    at = time.time() - hours * 3600
    os.utime(unfinished, (at, at))
    write(other, "another", [OWN])
    assert unfinished.exists() == stays
    assert pulled(other, away).bytes_moved < len(COMMON) or not stays
    check(other, "warm")


def test_a_pull_that_brings_nothing_makes_it_wait_another_day(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    for count in (5, 0):
        with monkeypatch.context() as patch:
            interrupted_after(count, patch)
            with pytest.raises(StoreUnusable):
                pulled(other, away)
        (unfinished,) = other.packs.folder.iterdir()
        if count:
            os.utime(unfinished, (0, 0))
    other.sweep()
    assert unfinished.exists()


def test_nothing_is_cleaned_up_while_an_image_moves(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is cleaned up here nor, in a folder, there."""
    write(store, "warm", [COMMON])
    real, busy = Folder.has, []

    def has(self: Folder, pack: packs.Pack) -> bool:
        for path in (store.path, away):
            with pytest.raises(StoreBusy):
                Store(path, store.cipher).clean()
            busy.append(path)
        return real(self, pack)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "has", has)
        pushed(store, away)
    real_part = Remote.part

    def part(self: Remote, path: str, at: int, size: int) -> memoryview:
        with pytest.raises(StoreBusy):
            other.clean()
        busy.append(other.path)
        return real_part(self, path, at, size)

    monkeypatch.setattr(Remote, "part", part)
    pulled(other, away)
    assert {*busy} == {store.path, away, other.path}
