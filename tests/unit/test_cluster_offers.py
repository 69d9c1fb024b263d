"""`gcr cluster up` offers the images of each node that can, and says which cannot; a pull finds the nodes that do."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

if not all(map(importlib.util.find_spec, ("cryptography", "ray"))):
    pytest.skip("a library of clusters is not installed: pip install '.[test]'", allow_module_level=True)

from gcr.cli import clusterexchange
from gcr.cluster import exchanges
from gcr.cluster.keys import Keys
from gcr.cluster.plugins import Node, NodeFacts
from gcr.errors import GcrError, LibraryMissing
from gcr.exchangeerrors import PeerUnusable
from gcr_ray.node import of_user


class Offering:
    def __init__(self, name: str, error: GcrError | None = None) -> None:
        self.name, self.error = name, error
        self.keys: Keys | None = None

    def offer(self, keys: Keys, port: int) -> str:
        if self.error:
            raise self.error
        self.keys = keys
        return f"tls://{self.name}:{port}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(name, str(tmp_path / name))


def facts() -> NodeFacts:
    return NodeFacts(host="h", boot_id="b", user=0, version="1", daemon_pid=7, jobs=())


def test_nodes_that_cannot_offer_are_named_and_the_others_have_the_same_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [Offering("a"), Offering("b", LibraryMissing("no cryptography", hint="pip install it")), Offering("c")]
    known = {node.name: facts() for node in nodes}
    offered = clusterexchange.offered(cast("list[Node]", nodes), known, 7)
    assert {name: each.exchange for name, each in offered.items()} == {"a": "tls://a:7", "b": None, "c": "tls://c:7"}
    assert capsys.readouterr().err == "gcr: node b offers no images: no cryptography (try: pip install it)\n"
    first = nodes[0].keys
    assert first and first == nodes[2].keys
    exchanges.keep(kept := Keys.made())
    clusterexchange.offered(cast("list[Node]", nodes), known, 7)
    assert nodes[0].keys == kept != first, "those of this node, where it has some"
    exchanges.token_file().unlink()
    monkeypatch.setattr("gcr.cluster.keys._certificate", lambda: (_ for _ in ()).throw(LibraryMissing("no library")))
    assert clusterexchange.offered(cast("list[Node]", nodes), known, 7) == known
    assert "the nodes offer no images: no library" in capsys.readouterr().err


def test_a_pull_needs_nodes_that_offer_and_the_keys_of_the_cluster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Mapping[str, Any]] = [{"reachable": False, "error": {"message": "node a is silent"}}]
    monkeypatch.setattr(clusterexchange, "asked", lambda *_: {"nodes": rows})
    with pytest.raises(PeerUnusable, match="no node of the cluster offers"):
        clusterexchange.peers_of_cluster()
    assert capsys.readouterr().err == "gcr: node a is silent\n"
    rows += [{"reachable": True, "exchange": None}, {"reachable": True, "exchange": "tls://[::1]:7"}]
    with pytest.raises(PeerUnusable, match="are not on this node"):
        clusterexchange.peers_of_cluster()
    exchanges.keep(keys := Keys.made())
    found = clusterexchange.peers_of_cluster()
    assert ([str(each) for each in found.addresses], found.token) == (["tls://[::1]:7"], keys.token)


def test_commands_of_a_node_are_no_part_of_the_job_that_ray_is() -> None:
    job = {"GCR_JOB": "ray", "GCR_TOKEN": "t", "RAY_X": "1", "HOME": "/root", "LD_PRELOAD": "/a/libgcr_shim.so"}
    assert of_user(job) == {"HOME": "/root"}
    assert of_user({**job, "LD_PRELOAD": "/a/libgcr_shim.so:/b/own.so"}) == {"HOME": "/root", "LD_PRELOAD": "/b/own.so"}
