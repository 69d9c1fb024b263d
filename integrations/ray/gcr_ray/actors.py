"""gcr's actors in a Ray cluster: one a node, by name, which outlive the program that made them.

An actor takes no CPU and no GPU of Ray's, stays on its node, and is made again where it dies.
"""

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from msgspec import Struct
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gcr.cluster.plugins import Program, Word
from gcr.clustererrors import NoCluster, NodeUnreachable
from gcr_ray.node import GcrNode

NAMESPACE = "gcr"
AT_ONCE = 64  # requests that a node carries at the same time
CONNECT_S = 5.0
WITHDRAWN_S = 10.0
STARTED_S = 90.0


class RayNode(Struct, frozen=True):
    """A node of Ray's. `id`: Ray's own for it."""

    id: str
    name: str
    address: str

    @property
    def actor(self) -> str:
        return f"gcr-{self.id}"


def connect(address: str | None) -> None:
    """Connects this process to the cluster, once. Raises NoCluster."""
    if ray.is_initialized():
        return
    _refuse_silent(address or os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(
            address=address or "auto",
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RayError, RuntimeError, ValueError, OSError) as error:
        said = str(error).strip().splitlines()
        where = f"at {address}" if address else "at hand"
        raise NoCluster(
            f"no Ray cluster {where}: {said[0].strip(chr(39)) if said else error!r}", hint="ray status"
        ) from error


def _refuse_silent(address: str) -> None:
    """Raises NoCluster where nothing listens at the address: Ray tries for minutes, and says so on stderr."""
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        raise NoCluster(f"no Ray cluster at {address}: {error.strerror or error}", hint="ray status") from error


def alive() -> Sequence[RayNode]:
    """Returns Ray's living nodes, by name. A name that several nodes have gets the node's id behind it."""
    found = [each for each in ray.nodes() if each["Alive"]]
    names = [each["NodeName"] for each in found]
    nodes = [
        RayNode(
            each["NodeID"],
            name if names.count(name) == 1 else f"{name}-{each['NodeID'][:8]}",
            each["NodeManagerAddress"],
        )
        for each, name in zip(found, names, strict=True)
    ]
    return sorted(nodes, key=lambda node: node.name)


def make(node: RayNode) -> ActorHandle:
    """Returns the node's actor, which may be on its way still."""
    kind = ray.remote(GcrNode)
    made: ActorHandle = kind.options(
        name=node.actor,
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_concurrency=AT_ONCE,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
    ).remote()
    return made


def existing(node: RayNode) -> ActorHandle | None:
    """Returns the node's actor, None if there is none."""
    try:
        return ray.get_actor(node.actor, namespace=NAMESPACE)
    except ValueError:
        return None


def end(actor: ActorHandle) -> None:
    ray.kill(actor, no_restart=True)


def facts_of(node: RayNode, actor: ActorHandle, timeout: float) -> Mapping[str, Any]:
    """Returns the actor's word about its node. Raises NodeUnreachable."""
    found: Mapping[str, Any] = _answer(node, actor.facts.remote(), timeout)
    return found


def started(node: RayNode, actor: ActorHandle, job: str, program: Program) -> Mapping[str, Any]:
    """Returns the actor's word about the start. Raises NodeUnreachable."""
    told = actor.start.remote(job, list(program.words), program.folder, dict(program.variables))
    found: Mapping[str, Any] = _answer(node, told, STARTED_S)
    return found


def end_part(node: RayNode, actor: ActorHandle, job: str) -> None:
    """Raises NodeUnreachable."""
    _answer(node, actor.end.remote(job), WITHDRAWN_S)


def withdraw(node: RayNode, actor: ActorHandle, token: str) -> None:
    """Raises NodeUnreachable."""
    _answer(node, actor.withdraw.remote(token), WITHDRAWN_S)


def _answer(node: RayNode, told: Any, timeout: float) -> Any:
    try:
        return ray.get(told, timeout=timeout)
    except (RayError, GetTimeoutError, TimeoutError) as error:
        raise unreachable(node, error) from error


def words_of(
    node: RayNode, actor: ActorHandle, token: str, op: str, body: Mapping[str, Any], timeout: float
) -> Iterator[Word]:
    """Yields the words of the node's daemon about a request. Raises NodeUnreachable."""
    try:
        for reference in actor.carry.options(num_returns="streaming").remote(token, op, dict(body), timeout):
            kind, said = ray.get(reference)
            yield Word(kind, said)
    except RayError as error:
        raise unreachable(node, error) from error


def unreachable(node: RayNode, error: Exception) -> NodeUnreachable:
    return NodeUnreachable(f"node {node.name} does not answer: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return said[0].strip("'\"") if said else type(error).__name__
