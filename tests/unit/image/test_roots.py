"""Roots of images over nodes in a store: each is there beside its part, whole or not at all, and goes with it."""

from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

import pytest
from disk import Disk
from imaging import bytes_of, write
from msgspec.structs import replace
from rooted import OTHER, part

from gcr.cutroot import Root, RootPart
from gcr.image.store.roots import StoredPart
from gcr.image.store.store import Store
from gcr.imageerrors import NoSuchImage, WrongImage

pytestmark = pytest.mark.on_disk


def known(parts: Sequence[StoredPart]) -> dict[str, Root | None]:
    return {each.manifest.name: each.root for each in parts}


def test_a_part_is_found_with_its_root_and_one_without_is_found_as_such(plain: Store) -> None:
    first, second = part(plain, 1), part(plain, 2, rooted=False)
    write(plain, "night", [bytes_of(9, 100)])
    write(plain, "day.0123456789abcdef.0", [bytes_of(9, 100)])
    assert known([*plain.roots.parts("night", None)]) == {first.part(0): first, second.part(0): None}
    assert known([*plain.roots.parts(None, "llm")]) == {first.part(0): first}
    assert known([*plain.roots.parts(None, "other")]) == {}


def test_a_root_that_is_damaged_or_of_another_image_is_as_none(plain: Store) -> None:
    root = part(plain, 1)
    path = plain.path / "images" / f"{root.part(0)}.cut"
    for wrong in (b"", b"\xff", path.read_bytes()[:-9], replace(root, parts=(OTHER,)).to_text().encode()):
        path.write_bytes(wrong)
        assert known([*plain.roots.parts("night", None)]) == {root.part(0): None}
    plain.roots.keep(root, root.part(0))
    assert known([*plain.roots.parts("night", None)]) == {root.part(0): root}


def test_a_root_is_kept_beside_its_own_part_alone(plain: Store) -> None:
    root = part(plain, 1, rooted=False)
    with pytest.raises(WrongImage, match="no part of cut"):
        plain.roots.keep(replace(root, parts=(OTHER,)), root.part(0))
    with pytest.raises(NoSuchImage):
        plain.roots.keep(root, root.part(1))
    assert known([*plain.roots.parts("night", None)]) == {root.part(0): None}


def test_a_root_goes_with_its_part_and_a_clean_up_takes_what_is_left(plain: Store) -> None:
    root, other = part(plain, 1), part(plain, 2)
    images = plain.path / "images"
    plain.remove([root.part(0)])
    assert [each.name for each in images.glob("*.cut*")] == [f"{other.part(0)}.cut"]
    for left in (f"{root.part(0)}.cut", f"{root.part(0)}.cut.new", f"{other.part(0)}.cut.new"):
        (images / left).write_bytes(b"x")
    plain.clean()
    assert [each.name for each in images.glob("*.cut*")] == [f"{other.part(0)}.cut"]


def test_former_parts_are_those_of_the_same_job_before_a_cut_whose_root_is_here(plain: Store) -> None:
    first, second, third = part(plain, 1), part(plain, 2, rooted=False), part(plain, 3)
    part(plain, 4, rooted=False)
    part(plain, 0, job="other")
    beside = write(plain, third.part(1), [bytes_of(7, 10)], created=2.5)  # nodes may share a store
    third = replace(third, parts=(third.parts[0], RootPart("b", beside.seal().hex(), 10)))
    for rank in range(2):
        plain.roots.keep(third, third.part(rank))
    older = lambda root: {each.name for each in plain.roots.older("night", root.cut)}  # noqa: E731
    assert older(third) == {first.part(0), second.part(0)}
    assert older(first) == set()
    assert older(replace(third, cut="f" * 32)) == set()


def test_a_crash_leaves_the_root_or_none_and_never_an_image_without_its_bytes(tmp_path: Path) -> None:
    """The former part has its root whatever happens; the new one has it whole, or not at all."""
    store = Store(tmp_path / "store")
    former = part(store, 1)
    new = part(store, 2, rooted=False)
    disk, seen = Disk(store.path), set()
    with disk.recorded():
        store.roots.keep(new, new.part(0))
    for state in disk.states():
        after = tmp_path / "after"
        state.write_to(after)
        found = known([*Store(after).roots.parts("night", None)])
        assert found[former.part(0)] == former
        assert found[new.part(0)] in (None, new)
        seen.add(found[new.part(0)])
        rmtree(after)
    assert seen == {None, new}
    assert known([*store.roots.parts("night", None)])[new.part(0)] == new


def test_a_crash_while_a_part_goes_leaves_no_root_without_its_part(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    root = part(store, 1)
    disk = Disk(store.path)
    with disk.recorded():
        store.remove([root.part(0)])
    for state in disk.states():
        after = tmp_path / "after"
        state.write_to(after)
        assert known([*Store(after).roots.parts("night", None)]) in ({}, {root.part(0): None}, {root.part(0): root})
        rmtree(after)
