"""The root of an image over nodes goes with its part, to a store elsewhere and back, compared or not at all."""

from collections.abc import Callable
from pathlib import Path

import pytest
from imaging import bytes_of, write
from msgspec.structs import replace
from remotes import contents, pulled, pushed
from rooted import OTHER, part

from gcr.cutroot import Root
from gcr.image.remote.remote import Remote
from gcr.image.store.roots import Roots
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, NoSuchImage


def roots_of(store: Store) -> list[Root | None]:
    return [each.root for each in store.roots.parts("night", None)]


@pytest.mark.usefixtures("kind")
def test_a_part_takes_its_root_along(store: Store, other: Store, away: Path) -> None:
    root = part(store, 1)
    assert pushed(store, away, root.part(0)).rooted is True
    assert pulled(other, away, root.part(0)).rooted is True
    assert roots_of(other) == [root]
    assert contents(store.path) == contents(other.path) == contents(away)


@pytest.mark.usefixtures("kind")
def test_a_root_that_comes_later_follows_its_part(store: Store, other: Store, away: Path) -> None:
    root = part(store, 1, rooted=False)
    name = root.part(0)
    assert (pushed(store, away, name).rooted, pulled(other, away, name).rooted) == (False, False)
    assert roots_of(other) == [None]
    store.roots.keep(root, name)
    assert (pushed(store, away, name).packs_moved, pulled(other, away, name).rooted) == (0, True)
    assert roots_of(other) == [root]


def test_an_image_that_is_no_part_has_no_root(store: Store, other: Store, away: Path) -> None:
    write(store, "night", [bytes_of(1, 100)])
    write(store, "night.2024", [bytes_of(1, 100)])
    for name in ("night", "night.2024"):
        assert (pushed(store, away, name).rooted, pulled(other, away, name).rooted) == (None, None)


CHANGES: list[Callable[[Root], bytes]] = [
    lambda _root: b"",
    lambda root: root.to_text().encode()[:-9],
    lambda root: replace(root, parts=(OTHER,)).to_text().encode(),
    lambda root: replace(root, image="day").to_text().encode(),
]


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("change", CHANGES)
def test_a_root_that_is_damaged_or_of_other_parts_brings_nothing(
    store: Store, other: Store, away: Path, change: Callable[[Root], bytes]
) -> None:
    root = part(store, 1)
    pushed(store, away, root.part(0))
    (away / "images" / f"{root.part(0)}.cut").write_bytes(change(root))
    before = contents(other.path)
    with pytest.raises(Damaged, match=r"night.*\.cut"):
        pulled(other, away, root.part(0))
    assert contents(other.path) == before
    pushed(store, away, root.part(0))  # mends it
    assert pulled(other, away, root.part(0)).rooted


def test_a_pull_that_dies_before_the_root_leaves_a_part_alone_and_the_next_one_brings_the_root(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = part(store, 1)
    pushed(store, away, root.part(0))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Roots, "keep", _dies)
        pulled(other, away, root.part(0))
    assert roots_of(other) == [None]
    moved = pulled(other, away, root.part(0))
    assert (moved.packs_moved, moved.rooted, roots_of(other)) == (0, True, [root])


@pytest.mark.usefixtures("as_bucket")
def test_a_push_that_dies_leaves_no_part_that_looks_whole(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = part(store, 1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Remote, "publish", _dies)
        pushed(store, away, root.part(0))
    assert [path.suffix for path in sorted((away / "images").iterdir())].count(".cut") == 1
    with pytest.raises(NoSuchImage):
        pulled(other, away, root.part(0))
    pushed(store, away, root.part(0))
    assert pulled(other, away, root.part(0)).rooted


def _dies(*_given: object) -> None:
    raise KeyboardInterrupt
