"""A job on several nodes starts on all of them or on none, and each part learns its place."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from gcr.cluster.keys import Keys
from gcr.cluster.plugins import NodeFacts, NodeJob, Program, Word
from gcr.cluster.ranks import chosen, start
from gcr.clustererrors import NodeUnreachable, TooFewNodes
from gcr.errors import CannotStart, GcrError, NameTaken

PROGRAM = Program(["train"], "/tmp", {"A": "b"})


@dataclass
class Fake:
    name: str
    error: GcrError | None = None
    started: list[Program] = field(default_factory=list)
    ended: list[tuple[str, str]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"10.0.0.{self.name}"

    def start(self, job: str, program: Program) -> str:
        self.started.append(program)
        if self.error:
            raise self.error
        return f"/log/{job}"

    def end(self, job: str, run: str) -> None:
        self.ended.append((job, run))
        if isinstance(self.error, NodeUnreachable):
            raise self.error

    def facts(self, timeout: float) -> NodeFacts:
        raise NotImplementedError

    def carry(self, token: str, op: str, body: Mapping[str, Any], timeout: float) -> Iterator[Word]:
        raise NotImplementedError

    def offer(self, keys: Keys, port: int) -> str:
        raise NotImplementedError

    def withdraw(self, token: str) -> None:
        raise NotImplementedError


def facts(*jobs: str) -> NodeFacts:
    rows = tuple(NodeJob(job=job, state="running") for job in jobs)
    return NodeFacts(host="h", boot_id="b", user=0, version="1", daemon_pid=7, jobs=rows)


def test_each_part_learns_its_place() -> None:
    nodes = [Fake("1"), Fake("2")]
    begun = start(nodes, "train", PROGRAM)
    assert [(each.node, each.rank, each.log) for each in begun] == [("1", 0, "/log/train"), ("2", 1, "/log/train")]
    for rank, node in enumerate(nodes):
        told = node.started[0].variables
        assert told["A"] == "b"
        assert (
            (told["GCR_NODES"], told["GCR_NODE_RANK"])
            == (told["PET_NNODES"], told["PET_NODE_RANK"])
            == ("2", str(rank))
        )
        assert told["PET_MASTER_ADDR"] == "10.0.0.1"


def test_where_one_node_fails_the_parts_of_the_others_end() -> None:
    """A node that is silent may have started its part: it is told by the id that the part was given."""
    nodes = [Fake("1"), Fake("2", CannotStart("no such program")), Fake("3", NodeUnreachable("gone"))]
    with pytest.raises(CannotStart) as failed:
        start(nodes, "train", PROGRAM)
    assert failed.value.message == "node 2: no such program"
    (run,) = {node.started[0].variables["GCR_CLUSTER_RUN"] for node in nodes}
    assert [node.ended for node in nodes] == [[("train", run)]] * 3
    assert len(run) == 32
    with pytest.raises(CannotStart):
        start(nodes, "train", PROGRAM)
    assert nodes[0].ended[1] != ("train", run), "each start has an id of its own"


def test_a_name_that_is_taken_and_too_few_nodes_are_refused() -> None:
    nodes = [Fake("1"), Fake("2")]
    free = {"1": facts(), "2": facts("other")}
    assert chosen(nodes, free, "train", 1) == nodes[:1]
    assert chosen(nodes, free, "train", None) == nodes
    with pytest.raises(NameTaken, match="on 2 already"):
        chosen(nodes, free, "other", 1)
    with pytest.raises(TooFewNodes, match="3 nodes are asked for, and the cluster has 2"):
        chosen(nodes, free, "train", 3)
