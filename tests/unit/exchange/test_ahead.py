"""A pull of an image that is being made: its packs come as they are written, and count once the image is there."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from imaging import check, described, mapped, read
from nodes import pulled, running
from remotes import COMMON, OWN, contents

from gcr.exchangeerrors import PeerUnusable
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged, NoSuchImage
from gcr.testing.machine import until

PATIENCE_S = 20.0


class Over(Exception):
    """The image is not wanted any more."""


class Making:
    """An image that a thread makes step by step: each allocation is sent ahead, but the last."""

    def __init__(self, store: Store, may_go_on: Callable[[int], object], fails: bool = False) -> None:
        """`may_go_on`: called with the number of packs that were sent."""
        self._store, self._may_go_on, self._fails = store, may_go_on, fails
        self._thread = threading.Thread(target=self._make, daemon=True)
        self._thread.start()

    def _make(self) -> None:
        with ImageWriter(self._store, "warm", threads=3) as writer:
            for number, data in enumerate((COMMON, OWN), 1):
                writer.add([(mapped(data), ())])
                writer.send_ahead()
                self._may_go_on(number)
            writer.add([(mapped(b"last"), ())])
            if not self._fails:
                writer.commit(described("warm", [len(COMMON), len(OWN), 4]))

    def end(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def packs(store: Store) -> int:
    return len([*store.packs.folder.glob("*.pack")])


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
        assert (moved.packs, moved.packs_moved, packs(other)) == (3, 1, 3)
        assert moved.bytes_moved == node.sent == moved.bytes - 3 * 4096
    assert read(other, "warm") == [COMMON, OWN, b"last"]
    assert not [*other.path.glob("images/*.ahead*")]
    check(other, "warm")


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
