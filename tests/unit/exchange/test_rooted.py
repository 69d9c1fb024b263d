"""The root of an image over nodes comes from a node that has it, compared with its part."""

from pathlib import Path

import pytest
from nodes import pulled, running, stores
from remotes import pushed
from rooted import part

from gcr.image.crypto.cipher import Cipher
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged


def rooted_path(store: Store, name: str) -> Path:
    return store.path / "images" / f"{name}.cut"


def test_a_part_brings_its_root_from_a_node_that_has_a_right_one(store: Store, tmp_path: Path, cipher: Cipher) -> None:
    root = part(store, 1)
    name = root.part(0)
    lacks, wrong, third = stores(tmp_path, 3, cipher)
    with running(store.path) as node:
        assert pulled(lacks, [node], name).rooted is True
        pulled(wrong, [node], name)
    rooted_path(lacks, name).unlink()
    rooted_path(wrong, name).write_bytes(b"{}")
    with running(lacks.path) as first, running(wrong.path) as second, running(store.path) as node:
        assert pulled(third, [first], name).rooted is False
        assert [each.root for each in third.roots.parts("night", None)] == [None]
        with pytest.raises(Damaged, match="no root"):
            pulled(third, [first, second], name)
        assert pulled(third, [first, second, node], name).rooted is True
    assert [each.root for each in third.roots.parts("night", None)] == [root]


def test_a_root_that_no_node_has_comes_from_the_store_elsewhere(store: Store, other: Store, tmp_path: Path) -> None:
    root = part(store, 1)
    name, away = root.part(0), tmp_path / "away"
    pushed(store, away, name)
    rooted_path(store, name).unlink()
    with running(store.path) as node:
        assert pulled(other, [node], name, away.as_uri()).rooted is True
