"""gcr's actors in a Ray cluster: one a node, by name, which outlive the program that made them.

An actor takes no CPU and no GPU of Ray's, stays on its node, and is made again where it dies.
"""

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from msgspec import Struct
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gcr.cluster.keys import Keys
from gcr.cluster.plugins import Program, Word
from gcr.clustererrors import NoCluster, NodeUnreachable
from gcr_ray import athand
from gcr_ray.node import GcrNode

NAMESPACE = "gcr"
ANY = "auto"  # Ray's word for the cluster that it finds
RAY_CLIENT = "ray://"
HINT = "ray status; where Ray wants a token, RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"  # Ray does not say which it is
AT_ONCE = 64  # requests that a node carries at the same time
CONNECT_S = 5.0
WITHDRAWN_S = 10.0
STARTED_S = 90.0
LATE_S = 45.0  # beyond the time of a request: for the daemon to take it back, and for the way here


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
    meant = address or os.environ.get("RAY_ADDRESS") or _at_hand()
    _refuse_silent(meant)
    try:
        ray.init(
            address=meant,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RayError, RuntimeError, ValueError, OSError) as error:
        where = "at hand" if meant == ANY else f"at {meant}"
        raise NoCluster(f"no Ray cluster {where}: {_first_line(error)}", hint=HINT) from error


def _at_hand() -> str:
    """Returns the address of the cluster that this machine is part of; ANY where none is seen. Raises NoCluster."""
    found = athand.addresses()
    if len(found) > 1:
        text = f"this machine is part of {len(found)} Ray clusters: {', '.join(found)}"
        raise NoCluster(text, hint="--address, or RAY_ADDRESS, with the one that is meant")
    return found[0] if found else ANY


def _refuse_silent(address: str) -> None:
    """Raises NoCluster where nothing listens at the address: Ray tries for minutes, and says so on stderr.

    Also for an address of Ray Client: actors of gcr tell word by word, which it does not carry.
    """
    if address.startswith(RAY_CLIENT):
        text = f"{address} is reached by Ray Client, which is not enough"
        raise NoCluster(text, hint="run it on a node of the cluster, without --address and RAY_ADDRESS")
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


def end(actors: Sequence[ActorHandle]) -> None:
    """Ends actors, once their nodes have ended what they offer, or after some seconds."""
    told = [actor.offer_no_more.remote() for actor in actors]
    if told:
        ray.wait(told, num_returns=len(told), timeout=WITHDRAWN_S)
    for actor in actors:
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


def offered(node: RayNode, actor: ActorHandle, keys: Keys, port: int) -> Mapping[str, Any]:
    """Returns the actor's word about the node's exchange. Raises NodeUnreachable."""
    found: Mapping[str, Any] = _answer(node, actor.offer.remote(keys.to_json(), node.address, port), STARTED_S)
    return found


def end_part(node: RayNode, actor: ActorHandle, job: str, run: str) -> None:
    """Asks again where the actor dies meanwhile, and is made again. Raises NodeUnreachable."""
    _answer(node, actor.end.options(max_task_retries=-1).remote(job, run), STARTED_S)


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
    """Yields the words of the node's daemon about a request.

    Raises NodeUnreachable, also where the last word has not come LATE_S after the request's own time.
    """
    end = time.monotonic() + timeout + LATE_S
    try:
        words = actor.carry.options(num_returns="streaming").remote(token, op, dict(body), timeout)
        while (reference := _next(words, end)) is not None:
            kind, said = ray.get(reference, timeout=_left(end))
            yield Word(kind, said)
    except (RayError, TimeoutError) as error:
        raise unreachable(node, error) from error


def _next(words: Any, end: float) -> Any:
    """Returns the reference of the next word, None after the last one. Raises TimeoutError."""
    if not ray.wait([words], timeout=_left(end))[0]:
        raise TimeoutError("its last word has not come in time")
    return next(words, None)


def _left(end: float) -> float:
    return max(0.0, end - time.monotonic())


def unreachable(node: RayNode, error: Exception) -> NodeUnreachable:
    return NodeUnreachable(f"node {node.name} does not answer: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return said[0].strip("'\"") if said else type(error).__name__
