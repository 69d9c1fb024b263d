"""Errors of clusters: where none is at hand, or its nodes do not answer or differ."""

from gcr.errors import GcrError, Refused
from gcr.imageerrors import WrongKey


class NoCluster(Refused):
    """No cluster is at hand, or it refuses this program; the message says which address was asked: `ray status`."""

    code = "no_cluster"


class NodeUnreachable(Refused):
    """A node of the cluster does not answer, or has no gcr; the message names it. `gcr cluster status` shows all."""

    code = "node_unreachable"


class NodesDiffer(Refused):
    """The nodes of a cluster have different versions of gcr, or gcr runs as different users there; the message says
    which node has which.
    """

    code = "nodes_differ"


class TooFewNodes(Refused):
    """More nodes are asked for than the cluster has: `gcr cluster status`."""

    code = "too_few_nodes"


def said_by_node(error: GcrError) -> GcrError:
    """Returns the error of a node. About an encrypted store it says what to do: no key goes to nodes."""
    if isinstance(error, WrongKey):
        error.hint = "--store FOLDER: a store without a key on every node, on a disk that is encrypted itself"
    return error


def naming(node: str, error: GcrError) -> GcrError:
    """Returns the error of a node with the node's name in its message."""
    said_by_node(error)
    error.message = f"node {node}: {error.message}"
    error.args = (error.message,)
    return error
