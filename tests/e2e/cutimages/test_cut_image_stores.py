"""The stores of an image over nodes: its parts move to others, share one, or are missing."""

import time
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

import jsonschema
from cut_images import FEW, ODD, cluster, names_of, refusal
from cut_nodes import JOB, TAKEN_S, Nodes, is_taken
from machine import Machine
from stored import store_of
from worlds import SLOW

from gcr import schemas
from gcr.image.store.store import Store


def test_parts_that_were_pushed_come_back_on_other_nodes_of_the_same_paths(nodes: Nodes, tmp_path: Path):
    """The other nodes have other names, and empty stores. A part on a node with another socket is refused by name."""
    done = nodes.image()
    assert done.error is None, done
    parts = [names_of(machine)[0] for machine in nodes.machines]
    for machine, name in zip(nodes.machines, parts, strict=True):
        sent = machine.gcr("push", name, tmp_path.joinpath("away").as_uri())
        jsonschema.Draft202012Validator(schemas.load("push")).validate(sent.body)
        assert (sent.code, sent.body["rooted"]) == (0, True), sent
    wiped(nodes)
    others = {f"other{number}": link for number, link in enumerate(nodes.links().values())}
    pull(nodes, tmp_path, [parts[1], parts[0]])
    crossed = nodes.restore_image(links=others)
    assert {each.error["code"] for each in crossed.report.nodes if each.error} == {"wrong_state"}, crossed
    assert str(nodes.machines[0].socket) in str([each.error for each in crossed.report.nodes])
    wiped(nodes)
    pull(nodes, tmp_path, parts[:1])
    assert refusal(nodes, others)["code"] == "cut_incomplete"
    pull(nodes, tmp_path, parts)
    end = time.monotonic() + TAKEN_S
    while is_taken(back := nodes.restore_image(links=others)) and time.monotonic() < end:
        pass
    assert (back.error, back.report.cut) == (None, done.report.cut), back
    nodes.are_right()


def wiped(nodes: Nodes) -> None:
    for machine in nodes.machines:
        rmtree(store_of(machine))


def pull(nodes: Nodes, folder: Path, parts: Sequence[str]) -> None:
    for machine, name in zip(nodes.machines, parts, strict=False):
        came = machine.gcr("pull", name, folder.joinpath("away").as_uri())
        jsonschema.Draft202012Validator(schemas.load("pull")).validate(came.body)
        assert (came.code, came.body["rooted"]) == (0, True), came


@SLOW
def test_nodes_with_a_key_in_their_settings_use_a_store_without_one(tmp_path: Path, criu: None):
    """A daemon has no key. So an encrypted store is refused before a program is stopped, and the hint says more."""
    nodes = Nodes.below(tmp_path, FEW, "keyed")
    try:
        for machine in nodes.machines:
            (machine.folder / "key").write_text("00112233445566778899aabbccddeeff" * 2)
            (machine.folder / "key").chmod(0o600)
            machine.extra["GCR_KEY_FILE"] = str(machine.folder / "key")
        nodes.begin_filed()
        for machine in nodes.machines:
            assert machine.gcr("checkpoint", JOB, "--image", "own", "--leave-running", timeout=60).code == 0
        refused = nodes.machines[0].gcr("cluster", "checkpoint", JOB, "--image", "night", "--stop", *nodes.options())
        errors = [each["error"] for each in refused.body["nodes"]]
        assert (refused.code, {each["code"] for each in errors}) == (3, {"wrong_key"}), refused.body
        assert all("--store" in each["hint"] for each in errors)
        nodes.are_right()
        plain = ("--store", str(tmp_path / "plain"))
        cluster(nodes.machines[0], "checkpoint", JOB, "--image", "night", "--stop", *plain, *nodes.options())
        cluster(nodes.machines[0], "restore", "--image", "night", *plain, *nodes.options())
        nodes.are_right()
    finally:
        nodes.close()


@SLOW
def test_nodes_may_share_a_store(tmp_path: Path, criu: None):
    nodes = Nodes.below(tmp_path, FEW, "shared")
    try:
        for machine in nodes.machines:
            machine.extra["GCR_STORE"] = str(tmp_path / "store")
        nodes.begin_filed()
        for _ in range(2):
            done = nodes.image()
            assert (done.error, nodes.states()) == (None, ["stopped"] * FEW), done
            names = [f"night.{str(done.report.cut)[:16]}.{rank}" for rank in range(FEW)]
            assert [*Store(tmp_path / "store").images.names()] == names
            assert nodes.recover().report.outcome == "done"
            assert nodes.come_back().report.cut == done.report.cut
            nodes.are_right()
    finally:
        nodes.close()


def test_an_image_that_lacks_a_part_is_refused_by_name_and_an_earlier_whole_one_is_taken(nodes: Nodes, odd: Machine):
    done = nodes.image()
    assert done.error is None, done
    alone = {name: link for name, link in nodes.links().items() if name != f"n{ODD}"}
    refused = refusal(nodes, alone)
    assert (refused["code"], refused["exit"]) == ("cut_incomplete", 3), refused
    assert f"part {ODD + 1} of {FEW}, of node n{ODD}" in refused["message"]
    assert nodes.states() == ["stopped"] * FEW
    nodes.come_back()
    gone = odd.gcr("rm", *names_of(odd))
    assert [each["image"] for each in gone.body["parts"]] == ["night"]
    jsonschema.Draft202012Validator(schemas.load("rm")).validate(gone.body)
    assert refusal(nodes)["code"] == "cut_incomplete"
    none = odd.gcr("cluster", "restore", "--image", "day", *nodes.options())
    assert (none.code, none.body["error"]["code"]) == (3, "no_such_image"), none.body
