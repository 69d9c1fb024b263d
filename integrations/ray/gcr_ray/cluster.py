"""The nodes of a Ray cluster, as gcr asks for them: the plug-in `ray` of the group `gcr.clusters`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gcr.cluster.keys import Keys
from gcr.cluster.plugins import ERROR, Node, NodeFacts, Program, Word
from gcr.clustererrors import NodeUnreachable
from gcr.errors import LibraryMissing

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from gcr_ray.actors import RayNode


class ActorNode(Struct, frozen=True):
    """A node, with gcr's actor on it if there is one."""

    ray_node: "RayNode"
    actor: "ActorHandle | None"

    @property
    def name(self) -> str:
        return self.ray_node.name

    @property
    def address(self) -> str:
        return self.ray_node.address

    def facts(self, timeout: float) -> NodeFacts:
        """Raises NodeUnreachable, and the node's own errors."""
        from gcr_ray import actors

        return NodeFacts.from_json(_checked(actors.facts_of(self.ray_node, self._present(), timeout))["facts"])

    def carry(self, token: str, op: str, body: Mapping[str, Any], timeout: float) -> Iterator[Word]:
        """Raises NodeUnreachable."""
        from gcr_ray import actors

        return actors.words_of(self.ray_node, self._present(), token, op, body, timeout)

    def start(self, job: str, program: Program) -> str:
        """Raises NodeUnreachable, as `gcr run`."""
        from gcr_ray import actors

        return str(_checked(actors.started(self.ray_node, self._present(), job, program))["log"])

    def end(self, job: str, run: str) -> None:
        """Raises NodeUnreachable."""
        from gcr_ray import actors

        actors.end_part(self.ray_node, self._present(), job, run)

    def offer(self, keys: Keys, port: int) -> str:
        """Raises NodeUnreachable, as `gcr exchange`."""
        from gcr_ray import actors

        return str(_checked(actors.offered(self.ray_node, self._present(), keys, port))["exchange"])

    def withdraw(self, token: str) -> None:
        """Raises NodeUnreachable."""
        from gcr_ray import actors

        actors.withdraw(self.ray_node, self._present(), token)

    def _present(self) -> "ActorHandle":
        if self.actor is None:
            raise NodeUnreachable(f"node {self.name} has no actor of gcr", hint="gcr cluster up")
        return self.actor


def _checked(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises the error that an actor tells of."""
    if error := Word(ERROR, said["error"]).error() if "error" in said else None:
        raise error
    return said


class RayCluster:
    """The Ray cluster at an address, by default the one that this machine is part of. Connects when it is asked."""

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    def up(self) -> Sequence[Node]:
        """Raises NoCluster, LibraryMissing."""
        actors = self._connected()
        return [ActorNode(node, actors.make(node)) for node in actors.alive()]

    def nodes(self) -> Sequence[Node]:
        """Raises NoCluster, LibraryMissing."""
        actors = self._connected()
        return [ActorNode(node, actors.existing(node)) for node in actors.alive()]

    def down(self) -> int:
        """Raises NoCluster, LibraryMissing."""
        actors = self._connected()
        found = [actor for node in actors.alive() if (actor := actors.existing(node))]
        actors.end(found)
        return len(found)

    def _connected(self) -> Any:
        try:
            from gcr_ray import actors
        except ImportError as error:
            message = f"a Ray cluster needs the Python module ray: {error}"
            raise LibraryMissing(message, hint="pip install 'gpu-cr[ray]'") from error
        actors.connect(self._address)
        return actors
