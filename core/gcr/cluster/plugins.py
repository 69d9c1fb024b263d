"""The nodes of a cluster, as gcr needs them: each takes a request for its own daemon, and gives the answer back.

A cluster's own means carry requests from machine to machine. They come as a plug-in: an entry point of the group
`gcr.clusters` with the methods of `Cluster`. integrations/ray is the one for Ray.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol

from msgspec import Struct

from gcr.api.answers import Answer
from gcr.cluster.keys import Keys
from gcr.clustererrors import NodesDiffer
from gcr.errors import GcrError, LibraryMissing, UsageError
from gcr.protocol.jsonbody import error_from_json, error_to_json

GROUP = "gcr.clusters"
EVENT, ANSWER, ERROR = "event", "answer", "error"
RUN = "GCR_CLUSTER_RUN"  # the variable that has the id of a start of a job on several nodes


class Word(Struct, frozen=True):
    """One word of a node about a request: events, and then an answer or an error. `body`: its JSON."""

    kind: str
    body: Mapping[str, Any]

    @classmethod
    def of_error(cls, error: GcrError) -> "Word":
        return cls(ERROR, error_to_json(error))

    @property
    def is_last(self) -> bool:
        return self.kind != EVENT

    def error(self) -> GcrError | None:
        return error_from_json(dict(self.body)) if self.kind == ERROR else None


class NodeJob(Answer, frozen=True, kw_only=True):
    """A job of a node."""

    job: str
    state: str


class NodeFacts(Answer, frozen=True, kw_only=True):
    """A node, as it describes itself. `boot_id`: of its kernel, two nodes of one machine have the same.

    exchange: the address at which it offers its images to the other nodes, None where it offers none
    devices, drivers: see hardware.py
    """

    host: str
    boot_id: str
    user: int
    version: str
    daemon_pid: int
    jobs: tuple[NodeJob, ...]
    exchange: str | None = None
    devices: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()


class Program(Struct, frozen=True):
    """A program to start on a node. `folder`: where it runs · `variables`: beside those of a user of the node."""

    words: Sequence[str]
    folder: str
    variables: Mapping[str, str]


class Node(Protocol):
    """A node of a cluster. `name` is unique within it, `address` for people."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...

    def facts(self, timeout: float) -> NodeFacts:
        """Raises NodeUnreachable, and the node's own errors."""
        ...

    def carry(self, token: str, op: str, body: Mapping[str, Any], timeout: float) -> Iterator[Word]:
        """Carries a request to the node's daemon, which goes on with it if the caller ends. Raises NodeUnreachable."""
        ...

    def start(self, job: str, program: Program) -> str:
        """Starts a part of a job on the node, detached, and returns the path of its log there.

        Raises NodeUnreachable, as `gcr run`.
        """
        ...

    def end(self, job: str, run: str) -> None:
        """Ends the processes of a part that was started with this id in the variable RUN, by SIGTERM.

        Raises NodeUnreachable.
        """
        ...

    def offer(self, keys: Keys, port: int) -> str:
        """Has the node offer its images with these keys, and returns the address. `port`: 0 for any free one.

        Raises NodeUnreachable, as `gcr exchange`.
        """
        ...

    def withdraw(self, token: str) -> None:
        """Leaves the daemon that has the request of this token: what is not decided is taken back.

        Raises NodeUnreachable.
        """
        ...


class Cluster(Protocol):
    """The cluster at hand."""

    def up(self) -> Sequence[Node]:
        """Makes gcr reachable on every node, and returns them. Raises NoCluster, NodeUnreachable."""
        ...

    def nodes(self) -> Sequence[Node]:
        """Returns all nodes; one without gcr raises NodeUnreachable when it is asked. Raises NoCluster."""
        ...

    def down(self) -> int:
        """Ends what `up` and `offer` made; jobs and daemons stay. Returns the number of nodes. Raises NoCluster."""
        ...


def cluster(address: str | None = None) -> Cluster:
    """Returns the cluster of the one plug-in that is installed; it is connected to when it is asked for nodes.

    address: of the cluster, in its own words; None: the one at hand. Raises LibraryMissing, UsageError.
    """
    found = [*entry_points(group=GROUP)]
    if len(found) > 1:
        raise UsageError(f"several plug-ins for clusters are installed: {', '.join(each.name for each in found)}")
    if not found:
        raise LibraryMissing("no plug-in for clusters is installed", hint="pip install 'gpu-cr[ray]'")
    made: Cluster = found[0].load()(address)
    return made


def refuse_different(nodes: Mapping[str, NodeFacts]) -> None:
    """Raises NodesDiffer unless all nodes have the same gcr and user."""
    versions = _groups(nodes, lambda facts: f"gcr {facts.version}")
    users = _groups(nodes, lambda facts: f"user {facts.user}")
    if groups := versions or users:
        raise NodesDiffer(f"the nodes of the cluster differ: {groups}")


def differences(nodes: Mapping[str, NodeFacts]) -> list[str]:
    """Returns in words where nodes have other devices or drivers. A cut in place needs no equal ones."""
    devices = _groups(nodes, lambda facts: ", ".join(facts.devices) or "no device")
    drivers = _groups(nodes, lambda facts: ", ".join(facts.drivers) or "no driver")
    return [groups for groups in (devices, drivers) if groups]


def _groups(nodes: Mapping[str, NodeFacts], of: Callable[[NodeFacts], str]) -> str:
    """Returns which nodes have which value; empty where all have the same."""
    by_value: dict[str, list[str]] = {}
    for name, facts in nodes.items():
        by_value.setdefault(of(facts), []).append(name)
    if len(by_value) < 2:
        return ""
    return "; ".join(f"{value}: {', '.join(names)}" for value, names in sorted(by_value.items()))
