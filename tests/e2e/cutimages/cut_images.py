"""Helps the tests of images over nodes: what lies in the stores, and how a job of several nodes comes back."""

from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from cut_nodes import Nodes
from machine import Machine
from stored import store_of

from gcr import schemas
from gcr.image.store.store import Store

FEW = 2
ODD = 1  # the node that something happens to


def names_of(machine: Machine) -> list[str]:
    return [*Store(store_of(machine)).images.names()] if store_of(machine).exists() else []


def rooted(machine: Machine) -> list[str]:
    """Returns the names of the images that have the root of a whole beside them."""
    return sorted(path.stem for path in (store_of(machine) / "images").glob("*.cut"))


def runs_again(nodes: Nodes) -> None:
    states = {*nodes.states()}
    if "stopped" in states:
        nodes.come_back()
    elif "suspended" in states:
        nodes.run_again()
    assert {*nodes.states()} == {"running"}
    nodes.are_right()


def settled(nodes: Nodes) -> str:
    """Has a new coordinator recover the job. Returns the one state that all parts have then."""
    nodes.states()  # each daemon is there again
    done = nodes.recover()
    assert done.error is None, done
    states = {*nodes.states()}
    assert states in ({"running"}, {"stopped"}, {"suspended"}, {"stopped", "suspended"}), states
    if "stopped" in states:  # all can come back: from the image, or where they are suspended
        nodes.come_back()
    runs_again(nodes)
    return "running" if states == {"running"} else "away"


def refusal(nodes: Nodes, links: Any = None) -> Mapping[str, Any]:
    with pytest.raises(Exception, match="image night") as caught:
        nodes.restore_image(links=links)
    error: Any = caught.value
    return {"code": error.code, "exit": error.exit, "message": error.message}


def cluster(machine: Machine, command: str, *words: str) -> Mapping[str, Any]:
    done = machine.gcr("cluster", command, *words)
    assert done.code == 0, (done.body, done.stderr)
    jsonschema.Draft202012Validator(schemas.load(f"cluster {command}")).validate(done.body)
    assert done.body["image"] == ("night" if "--image" in words else None)
    return done.body
