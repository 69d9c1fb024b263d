"""The cut that a restore of an image over nodes takes: the newest whole one, by roots and parts of any nodes."""

import random
from collections.abc import Iterable, Sequence

import pytest
from msgspec.structs import replace

from gcr.api.partrequests import ImagePart
from gcr.cluster.images import newest
from gcr.cluster.running import own_part
from gcr.cuterrors import CutIncomplete
from gcr.cutroot import Root, RootPart, cut_name, image_named, image_of, part_name
from gcr.errors import UsageError
from gcr.imageerrors import NoSuchImage

NODES = ["a", "b", "c"]


def root(number: int, nodes: Sequence[str] = NODES) -> Root:
    """Returns the root of the cut made at second `number`."""
    parts = tuple(RootPart(node, f"{number:x}{rank:x}".rjust(64, "0"), 8 * number) for rank, node in enumerate(nodes))
    return Root("night", f"{number:x}".rjust(16, "0").ljust(32, "0"), "train", float(number), parts)


def part(of: Root, rank: int, rooted: bool = True) -> ImagePart:
    return ImagePart(
        image=of.part(rank),
        job=of.job,
        created=of.created,
        seal=of.parts[rank].seal,
        bytes=of.parts[rank].bytes,
        whole=True,
        root=of.to_text() if rooted else None,
    )


def all_of(*roots: Root, rooted: Iterable[str] = NODES) -> dict[str, list[ImagePart]]:
    return {node: [part(of, rank, node in rooted) for of in roots] for rank, node in enumerate(NODES)}


def test_the_newest_cut_is_taken_whatever_the_order_of_the_nodes():
    there = all_of(root(7), root(9), root(8))
    assert newest("night", there).root == root(9)
    assert newest("night", dict(reversed(there.items()))).nodes == ("a", "b", "c")


def test_one_root_is_enough_and_the_others_are_told_to_be_lacking():
    found = newest("night", all_of(root(7), rooted=["b"]))
    assert (found.nodes, found.lacking) == (("a", "b", "c"), (0, 2))


def test_a_cut_without_a_root_is_no_image_and_the_former_one_is_taken():
    there = {node: [*all_of(root(9), rooted=[])[node], *all_of(root(7))[node]] for node in NODES}
    assert newest("night", there).root == root(7)
    with pytest.raises(CutIncomplete, match="given up before all were durable"):
        newest("night", all_of(root(9), rooted=[]))


def test_a_part_that_is_missing_or_another_has_the_former_one_taken_or_is_named():
    there = all_of(root(7), root(9))
    there["b"] = [each for each in there["b"] if each.image != root(9).part(1)]
    assert newest("night", there).root == root(7)
    there["c"] = [replace(each, seal="f" * 64) if each.image == root(7).part(2) else each for each in there["c"]]
    with pytest.raises(CutIncomplete, match=r"lack part 2 of 3, of node b, of cut 0000000000000009"):
        newest("night", there)


def test_parts_are_found_on_other_nodes_than_they_were_made_on():
    there = all_of(root(7))
    there = {"x": there["b"], "y": there["c"], "z": there["a"]}
    assert newest("night", there).nodes == ("z", "x", "y")


def test_nodes_that_share_a_store_take_each_its_own_part():
    every = [part(root(7), rank) for rank in range(len(NODES))]
    assert newest("night", dict.fromkeys(reversed(NODES), every)).nodes == ("a", "b", "c")
    assert newest("night", dict.fromkeys(["x", "y", "z"], every)).nodes == ("x", "y", "z")
    there = {root(7).part(rank): root(7) for rank in range(len(NODES))}
    assert [own_part(root(7), node, there) for node in (*NODES, "x")] == [*there, None]
    assert own_part(root(7), "x", {root(7).part(1): root(7)}) == root(7).part(1)


def test_no_part_at_all_is_no_such_image():
    with pytest.raises(NoSuchImage, match="night"):
        newest("night", {node: [] for node in NODES})


def test_the_name_of_a_part_says_its_image():
    name = part_name(cut_name("night.one", "0123456789abcdef" * 2), 17)
    assert (name, image_of(name)) == ("night.one.0123456789abcdef.17", "night.one")
    assert image_named(cut_name("night.one", "0" * 32)) == "night.one"
    others = ("night", "run.000000001000", "night.0123456789abcdef", "night.0123456789ABCDEF.0")
    assert [image_of(each) for each in others] == [None] * 4
    with pytest.raises(UsageError, match="40 characters"):
        cut_name("n" * 41, "0" * 32)


def test_a_root_reads_back_and_any_other_byte_is_damage():
    text, chance = root(7).to_text(), random.Random(7)
    assert Root.from_text(text) == root(7)
    for _ in range(300):
        at = chance.randrange(len(text))
        other = text[:at] + chance.choice("abc0{}x\u00e9") + text[at + 1 :]
        try:
            assert Root.from_text(other) == root(7)  # a blank in another place
        except ValueError:
            continue
    for wrong in ("", "[]", "{}", "null", text[:-2], text.replace('"root"', '"tree"')):
        with pytest.raises(ValueError, match=r"."):
            Root.from_text(wrong)


@pytest.mark.parametrize(
    "made",
    [
        replace(root(7), parts=()),
        replace(root(7), parts=(root(7).parts[0],) * 2),
        replace(root(7), cut="x"),
        replace(root(7), parts=(RootPart("a\n", "0" * 64, 1),)),
        replace(root(7), parts=(RootPart("a", "0" * 63, 1),)),
        replace(root(7), parts=(RootPart("a", "0" * 64, -1),)),
    ],
)
def test_a_root_that_makes_no_sense_is_refused_though_its_digest_is_right(made: Root):
    with pytest.raises(ValueError, match="contradicts itself"):
        Root.from_text(made.to_text())
