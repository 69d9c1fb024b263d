"""Each thing that CRIU cannot save is found in a real process, with its descriptor and its name; others are not."""

import re

import pytest
from held_things import REFUSED, SAVED, Hold, Thing

from gcr.api.checks import ALLOWED
from gcr.criu.preflight.check import obstacles
from gcr.criu.preflight.obstacle import Kind, Options

NONE = Options()


@pytest.mark.parametrize("thing", SAVED, ids=str)
def test_what_criu_saves_is_no_obstacle(hold: Hold, thing: Thing) -> None:
    assert obstacles(hold(thing).tree, (), NONE) == []


@pytest.mark.parametrize("thing", REFUSED, ids=str)
def test_an_obstacle_is_named(hold: Hold, thing: Thing) -> None:
    held = hold(thing)
    found = obstacles(held.tree, (), NONE)
    assert {each.kind for each in found} - {Kind.NAMESPACE} == {thing.kind}  # some have a network of their own
    number = rf"descriptor {held.fd}, .*" if held.fd >= 0 else ""
    assert [each for each in found if re.search(number + thing.named, each.object)], found
    assert all(each.pid in held.tree and each.remedy in str(each) for each in found)


@pytest.mark.parametrize("thing", [each for each in REFUSED if each.options], ids=str)
def test_an_option_allows_it(hold: Hold, thing: Thing) -> None:
    held = hold(thing)
    assert obstacles(held.tree, (), thing.options) == []
    for allowed in {argument.removeprefix("--") for argument in thing.arguments}.intersection(ALLOWED):
        assert f"`{allowed}`" in obstacles(held.tree, (), NONE)[0].remedy


def test_every_kind_is_told_apart() -> None:
    elsewhere = {
        Kind.PIPE,
        Kind.NOT_A_MEMBER,
        Kind.FOREIGN_SESSION,
        Kind.NAMESPACE,
        Kind.LEFT_BEHIND,
        Kind.RDMA,
        Kind.HALF_OPEN,
        Kind.OLD_CRIU,
        Kind.UNREADABLE,
    }
    assert {thing.kind for thing in REFUSED} | elsewhere == set(Kind)
