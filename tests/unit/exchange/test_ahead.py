"""A pull of an image that is being made: its packs come as they are written, and count once the image is there."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from imaging import check, read, write
from little_disk import little
from making import PATIENCE_S, Making, packs
from nodes import Running, pulled, running
from remotes import COMMON, OWN, contents

from gcr.errors import NoRoom
from gcr.exchangeerrors import PeerUnusable
from gcr.image.chunks.entry import BLOCK
from gcr.image.crypto.cipher import Cipher
from gcr.image.exchange import awaiting
from gcr.image.exchange.giver import LINES
from gcr.image.files import ahead
from gcr.image.files.names import ahead_path
from gcr.image.pack.format import ARRIVING, SUFFIX, Pack
from gcr.image.remote import pull
from gcr.image.remote.arriving import Arriving
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, NoSuchImage, StoreBusy
from gcr.testing.machine import until


class Over(Exception):
    """The image is not wanted any more."""


def sent(store: Store, number: int) -> Pack | None:
    """Returns the number-th pack that was sent ahead."""
    path = store.path / ahead_path("warm", number)
    return ahead.noted(path.read_bytes(), path) if path.exists() else None


def data_of(store: Store, pack: Pack | None, data: bytes) -> bool:
    """Returns whether these are bytes of chunks of the pack."""
    return bool(pack and len(data) > 3 * BLOCK and data in (store.packs.folder / f"{pack.id}{SUFFIX}").read_bytes())


@contextmanager
def holding(store: Store, which: Callable[[bytes], bool]) -> Iterator[tuple[Running, threading.Event]]:
    """Runs a node that sends some bytes only after the event, which ends with the block."""
    may_send = threading.Event()

    def hold(data: bytes) -> bytes:
        if which(data):
            may_send.wait(PATIENCE_S)
        return data

    with running(store.path, change=hold) as node:
        try:
            yield node, may_send
        finally:
            may_send.set()


def test_packs_come_before_the_image_is_there(store: Store, other: Store) -> None:
    def await_pack(number: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while packs(other) < number:
            assert time.monotonic() < end
            time.sleep(0.005)
        assert other.images.names() == []

    with running(store.path) as node:
        making = Making(store, await_pack)
        moved = pulled(other, [node], wait_s=5.0, awaiting=lambda: None)
        making.end()
        assert (moved.packs, packs(other)) == (3, 3)
        assert moved.packs_moved <= 1, "the last one comes ahead of the manifest, or with it"
        assert moved.bytes_moved == node.sent == moved.bytes - 3 * 4096
    assert read(other, "warm") == [COMMON, OWN, b"last"]
    assert not [*other.path.glob("images/*.ahead*")]
    check(other, "warm")


def test_packs_come_side_by_side_and_no_clean_up_removes_them_meanwhile(store: Store, other: Store) -> None:
    """The second pack is here before the first one, of which no chunk is sent until then."""
    with holding(store, lambda data: data_of(store, sent(store, 1), data)) as (node, may_send):
        making = Making(
            store, lambda number: until(lambda: packs(other) or number == 1, PATIENCE_S, "the second is here")
        )

        def look() -> None:
            if packs(other) and not may_send.is_set():
                with pytest.raises(StoreBusy):
                    other.clean()
                may_send.set()

        pulled(other, [node], wait_s=5.0, awaiting=look)
        making.end()
        assert may_send.is_set()
    assert read(other, "warm") == [COMMON, OWN, b"last"]
    check(other, "warm")


def test_a_pack_that_fails_beside_another_ends_the_pull_and_the_next_one_brings_it(store: Store, other: Store) -> None:
    """No chunk of the other pack comes until then: its file is left, unlocked."""

    def change(data: bytes) -> bytes:
        if data_of(store, sent(store, 1), data):
            time.sleep(0.2)
        return data[:-1] + bytes([data[-1] ^ 1]) if data_of(store, sent(store, 2), data) else data

    with running(store.path, change=change) as node:
        making = Making(store, lambda number: number == 1 or until(lambda: over, PATIENCE_S, "the pull has ended"))
        over = list[bool]()
        with pytest.raises(Damaged, match="sent wrong bytes"):
            pulled(other, [node], wait_s=5.0, awaiting=lambda: None)
        over.append(True)
        making.end()
    assert other.images.names() == [] and packs(other) <= 1
    with running(store.path) as node:
        pulled(other, [node], wait_s=5.0, awaiting=lambda: None)
    check(other, "warm")


def test_a_pull_that_brings_packs_ahead_waits_for_no_other_pull(store: Store, other: Store) -> None:
    """A pack that another pull has is left to that one. The packs that were here before are free by then."""
    locked, once = ExitStack(), threading.Lock()

    def take(number: int) -> None:
        if number == 1:
            until(lambda: packs(other) == 1, PATIENCE_S, "the first is here")

    def lock(data: bytes) -> bytes:
        """Takes the second pack before it is asked for: with its note's bytes."""
        pack = sent(store, 2)
        if pack and pack.id.encode() in data and once.acquire(blocking=False):
            locked.enter_context(Arriving(other, pack, lambda: None).opened())
        return data

    with running(store.path, change=lock) as node, ThreadPoolExecutor(1) as thread:
        making = Making(store, take)
        pull = thread.submit(pulled, other, [node], wait_s=5.0, awaiting=lambda: None)
        making.end()
        until(lambda: packs(other) == 2, PATIENCE_S, "all others are here")
        first = sent(store, 1)
        assert first and not pull.done() and other.images.names() == []
        assert not [*other.packs.folder.glob(f"{first.id}{ARRIVING}")]
        locked.close()
        pull.result(PATIENCE_S)
    check(other, "warm")


def test_a_pack_with_a_large_index_comes_in_more_steps(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gcr.image.exchange.coming._OF_AN_INDEX", 1 << 30)
    with running(store.path) as node:
        making = Making(store, lambda number: until(lambda: packs(other) == number, PATIENCE_S, "it is here"))
        pulled(other, [node], wait_s=5.0, awaiting=lambda: None)
        making.end()
    check(other, "warm")


@pytest.mark.parametrize("fails", [True, False])
def test_places_are_compared_while_chunks_come_else_behind_them(
    store: Store, other: Store, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, early, late = list[str](), awaiting.placed, pull._refuse_misplaced

    def placed(*given: Any) -> bytes:
        calls.append("early")
        if fails:
            raise Damaged("some packs are not here yet")
        return early(*given)

    def refuse_misplaced(*given: Any) -> None:
        calls.append("late")
        late(*given)

    monkeypatch.setattr(awaiting, "placed", placed)
    monkeypatch.setattr(pull, "_refuse_misplaced", refuse_misplaced)
    Making(store, lambda _number: None).end()
    with running(store.path) as node:
        pulled(other, [node], wait_s=5.0, awaiting=lambda: None)
    assert calls == ["early", *["late"] * fails]
    check(other, "warm")


def test_connections_are_there_before_the_first_byte(store: Store, other: Store) -> None:
    made = []

    def look() -> None:
        made.append(len(node.node._door._visits))
        if made[-1] >= LINES:
            raise Over

    with running(store.path) as node, pytest.raises(Over):
        pulled(other, [node], wait_s=5.0, awaiting=look)
    assert contents(other.path) == {}


def test_a_disk_that_becomes_full_is_told(store: Store, cipher: Cipher, tmp_path: Path) -> None:
    over = threading.Event()
    with little(tmp_path / "small", 1 << 20), running(store.path) as node:
        small = Store(tmp_path / "small", cipher)
        making = Making(store, lambda _number: over.wait(PATIENCE_S))
        with pytest.raises(NoRoom, match="is full"):
            pulled(small, [node], wait_s=5.0, awaiting=lambda: None)
        over.set()
        making.end()
        assert small.images.names() == [] and packs(small) == 0


def test_a_store_that_has_no_room_to_be_made_is_told_as_such(store: Store, cipher: Cipher, tmp_path: Path) -> None:
    """The image is there, and no pack was sent ahead."""
    write(store, "warm", [COMMON])
    with little(tmp_path / "tiny", 4096), running(store.path) as node:
        with pytest.raises(OSError, match="No space"):
            (tmp_path / "tiny" / "other").write_bytes(bytes(1 << 16))
        tiny = cast("Store", SimpleNamespace(path=tmp_path / "tiny" / "store", cipher=cipher))
        with pytest.raises(NoRoom, match="is full"):
            pulled(tiny, [node], wait_s=5.0, awaiting=lambda: None)


def test_a_pull_that_comes_late_waits_for_nothing(store: Store, other: Store) -> None:
    Making(store, lambda _number: None).end()
    with running(store.path) as node:
        began = time.monotonic()
        pulled(other, [node], wait_s=10.0, awaiting=lambda: None)
        assert time.monotonic() - began < 8
    check(other, "warm")


def test_an_image_that_is_not_wanted_any_more_leaves_packs_that_the_next_clean_up_removes(
    store: Store, other: Store
) -> None:
    looks = []

    def look() -> None:
        looks.append(packs(other))
        if looks[-1] == 2:
            raise Over

    with running(store.path) as node:
        making = Making(store, lambda _number: None, fails=True)
        with pytest.raises(Over):
            pulled(other, [node], wait_s=0.05, awaiting=look)
        making.end()
    assert other.images.names() == [] and contents(other.path)
    other.clean()
    assert [*other.packs.folder.iterdir()] == [] and not [*other.path.glob("images/*")]


def test_a_node_that_ends_meanwhile_is_named(store: Store, other: Store) -> None:
    def end(number: int) -> None:
        if number == 2:
            until(lambda: packs(other) == 2, PATIENCE_S, "both have come")
            node.end()

    with running(store.path) as node:
        making = Making(store, end, fails=True)
        with pytest.raises((NoSuchImage, PeerUnusable)):
            pulled(other, [node], wait_s=10.0, awaiting=lambda: None)
        making.end()
    assert other.images.names() == []


def test_what_is_no_note_of_a_pack_is_refused(store: Store, other: Store, tmp_path: Path) -> None:
    (store.path / "images/warm.ahead1").write_text("{}")
    with running(store.path) as node, pytest.raises(Damaged):
        pulled(other, [node], wait_s=5.0, awaiting=lambda: None)
    assert packs(other) == 0
