"""The exchanges of a cluster's nodes: `gcr cluster up` starts them, and `gcr pull --from cluster` finds them."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gcr.cli.output import say
from gcr.cluster import exchanges
from gcr.cluster.keys import Keys
from gcr.cluster.plugins import Node, NodeFacts
from gcr.errors import GcrError
from gcr.exchangeerrors import PeerUnusable
from gcr.library.answers import asked

if TYPE_CHECKING:
    from gcr.image.exchange.pulling import Peers

AT_ONCE = 64
STATUS_S = 90.0


def offered(found: Sequence[Node], known: Mapping[str, NodeFacts], port: int) -> Mapping[str, NodeFacts]:
    """Has every node offer its images, and returns the nodes with their addresses. Names those that cannot.

    All get the keys that this node has; new ones are made where it has none.
    """
    try:
        keys = exchanges.kept() or Keys.made()
    except GcrError as error:
        _say("the nodes offer", error)
        return known
    with ThreadPoolExecutor(AT_ONCE, "gcr-offer") as pool:
        addresses = [*pool.map(lambda node: _address(node, keys, port), found)]
    return {node.name: replace(known[node.name], exchange=url) for node, url in zip(found, addresses, strict=True)}


def _address(node: Node, keys: Keys, port: int) -> str | None:
    try:
        return node.offer(keys, port)
    except GcrError as error:
        _say(f"node {node.name} offers", error)
        return None


def _say(which: str, error: GcrError) -> None:
    hint = f" (try: {error.hint})" if error.hint else ""
    say(f"gcr: {which} no images: {error.message}{hint}")


def peers_of_cluster() -> "Peers":
    """Returns the exchanges of the cluster at hand, and the keys that they have in common.

    Ray is asked by a command of its own: the process that pulls forks, and has nothing of Ray in it.
    Raises PeerUnusable; as `gcr cluster status`.
    """
    from gcr.image.exchange.address import PeerAddress, Trust
    from gcr.image.exchange.pulling import Peers

    rows = asked(["cluster", "status"], STATUS_S)["nodes"]
    for row in rows:
        if not row["reachable"]:
            say(f"gcr: {row['error']['message']}")
    keys, found = exchanges.kept(), [row["exchange"] for row in rows if row.get("exchange")]
    if not found:
        raise PeerUnusable("no node of the cluster offers its images", hint="gcr cluster up")
    if keys is None:
        text = f"the keys of the cluster's exchanges are not on this node, in {exchanges.token_file().parent}"
        raise PeerUnusable(text, hint="gcr cluster up")
    return Peers([*map(PeerAddress.parsed, found)], keys.token, Trust(pinned=keys.certificate))
