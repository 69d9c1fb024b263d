"""Images come from other nodes, whole, and from several at once."""

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from imaging import check, read, write
from nodes import pulled, running, shares, stores
from remotes import COMMON, OWN, contents, pushed

from gcr.exchangeerrors import PeerUnusable
from gcr.image.crypto.cipher import Cipher
from gcr.image.store.store import Store
from gcr.imageerrors import NoSuchImage, StoreUnusable


def test_an_image_comes_from_a_node_byte_by_byte(store: Store, other: Store) -> None:
    """No key is with the sender; the receiver marks the image as one from elsewhere."""
    write(store, "warm", [COMMON, OWN])
    with running(store.path) as node:
        moved = pulled(other, [node])
    assert contents(other.path) == contents(store.path)
    assert other.images.is_pulled("warm")
    assert read(other, "warm") == [COMMON, OWN]
    check(other, "warm")
    assert (moved.packs, moved.packs_moved) == (1, 1)
    assert shares(moved) == {str(node.address): moved.bytes_moved}
    assert node.sent == moved.bytes_moved == moved.bytes - 4096  # the header is known


def test_each_of_two_nodes_sends_a_part(store: Store, tmp_path: Path, cipher: Cipher) -> None:
    write(store, "warm", [COMMON, OWN])
    second, third = stores(tmp_path, 2, cipher)
    with running(store.path) as first, running(second.path) as node:
        pulled(second, [first])
        before = first.sent
        moved = pulled(third, [first, node])
    assert 0 < node.sent < moved.bytes_moved
    assert first.sent - before + node.sent == moved.bytes_moved
    assert contents(third.path) == contents(store.path)


def test_what_is_here_is_not_asked_for(store: Store, other: Store) -> None:
    write(store, "warm", [COMMON])
    with running(store.path) as node:
        pulled(other, [node])
        before = node.sent
        moved = pulled(other, [node])
        assert (moved.packs_moved, moved.bytes_moved, node.sent) == (0, 0, before)
        write(store, "next", [COMMON, OWN])
        moved = pulled(other, [node], "next")
        assert moved.packs_moved == 1 < moved.packs
        assert len(OWN) <= moved.bytes_moved < len(OWN) + len(COMMON)


def test_nodes_that_pull_at_the_same_time_exchange_pieces(store: Store, tmp_path: Path, cipher: Cipher) -> None:
    """The source sends hardly more than one copy to four nodes."""
    many = [COMMON, OWN, *(bytes([number]) * 300_000 for number in range(1, 9))]
    write(store, "warm", many)
    nodes = stores(tmp_path, 4, cipher)
    with ExitStack() as stack:
        source = stack.enter_context(running(store.path, pause=0.1))
        places = [stack.enter_context(running(each.path)) for each in nodes]
        threads = [threading.Thread(target=pulled, args=(each, [source, *places])) for each in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        size = sum(path.stat().st_size for path in store.packs.folder.iterdir())
        assert all(contents(each.path) == contents(store.path) for each in nodes)
        assert source.sent < 2.5 * size
        assert sum(place.sent for place in places) > 0.5 * size


def test_the_store_elsewhere_is_asked_for_what_no_node_has(store: Store, other: Store, tmp_path: Path) -> None:
    write(store, "warm", [COMMON])
    away = tmp_path / "away"
    pushed(store, away)
    with running(store.path) as node:
        moved = pulled(other, [node], url=away.as_uri())
        assert shares(moved) == {str(node.address): moved.bytes_moved}
    with running(tmp_path / "nowhere") as empty:
        third = Store(tmp_path / "third", store.cipher)
        moved = pulled(third, [empty], url=away.as_uri())
        assert shares(moved) == {away.as_uri(): moved.bytes_moved}
    assert contents(third.path) == contents(other.path) == contents(store.path)


def test_a_store_elsewhere_that_does_not_answer_is_not_needed(store: Store, other: Store, tmp_path: Path) -> None:
    write(store, "warm", [COMMON])
    with running(store.path) as node:
        (tmp_path / "file").write_bytes(b"")
        pulled(other, [node], url=(tmp_path / "file").as_uri())
    with running(tmp_path / "nowhere") as empty, pytest.raises(StoreUnusable):
        pulled(Store(tmp_path / "third", store.cipher), [empty], url=(tmp_path / "file").as_uri())


def test_an_image_of_zeros_has_no_pack(store: Store, other: Store) -> None:
    write(store, "warm", [bytes(500_000)])
    with running(store.path) as node:
        assert pulled(other, [node]).packs == 0
    assert read(other, "warm") == [bytes(500_000)]


def test_a_pull_waits_for_an_image_that_is_being_made(store: Store, other: Store) -> None:
    """It gets word at once, and does not ask again and again."""
    with running(store.path) as node:
        with pytest.raises(NoSuchImage):
            pulled(other, [node], wait_s=0.05)
        later, began = threading.Timer(0.5, write, (store, "warm", [COMMON])), time.monotonic()
        later.start()
        pulled(other, [node], wait_s=10.0)
        assert 0.5 <= time.monotonic() - began < 8
        later.join()
    check(other, "warm")


def test_an_exchange_that_ends_keeps_no_waiting_peer(store: Store, other: Store) -> None:
    write(store, "warm", [COMMON])
    with running(store.path) as node:
        threading.Timer(0.3, node.end).start()
        began = time.monotonic()
        with pytest.raises((NoSuchImage, PeerUnusable)):
            pulled(other, [node], "cold", wait_s=10.0)
        assert time.monotonic() - began < 8
