"""The parts of a job that runs on several nodes: which nodes, what each is told of its place, all started or none."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from gcr.cluster.plugins import RUN, Node, NodeFacts, Program
from gcr.clustererrors import TooFewNodes, naming
from gcr.errors import GcrError, NameTaken

AT_ONCE = 64
PORT = 29400  # torchrun's own


class Started(Struct, frozen=True):
    """A part that runs. `rank`: of its node, from 0 · `log`: a file of the node, with the program's output."""

    node: str
    rank: int
    log: str


def chosen(nodes: Sequence[Node], known: Mapping[str, NodeFacts], job: str, wanted: int | None) -> Sequence[Node]:
    """Returns the nodes for a job: the first ones, by name; all where None are wanted.

    Raises NameTaken where a node has a job of this name, TooFewNodes.
    """
    taken = [name for name, facts in known.items() if any(each.job == job for each in facts.jobs)]
    if taken:
        raise NameTaken(f"job {job} is on {', '.join(taken)} already", hint="gcr cluster status")
    if wanted is not None and wanted > len(nodes):
        raise TooFewNodes(f"{wanted} nodes are asked for, and the cluster has {len(nodes)}", hint="gcr cluster status")
    return nodes[:wanted]


def place_of(rank: int, nodes: Sequence[Node]) -> Mapping[str, str]:
    """Returns variables that tell a program its place, in gcr's words and in those that torchrun reads."""
    return {
        "GCR_NODES": str(len(nodes)),
        "GCR_NODE_RANK": str(rank),
        "PET_NNODES": str(len(nodes)),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": nodes[0].address,
        "PET_MASTER_PORT": str(PORT),
    }


def start(nodes: Sequence[Node], job: str, program: Program) -> Sequence[Started]:
    """Starts a part on each node. Raises the first error, which names its node, once the other parts were ended.

    A node that does not answer may have started its part all the same. So every node is told to end its part.
    """
    run = secrets.token_hex(16)
    program = replace(program, variables={**program.variables, RUN: run})
    calls = [partial(_start, node, rank, nodes, job, program) for rank, node in enumerate(nodes)]
    with ThreadPoolExecutor(AT_ONCE, "gcr-start") as pool:
        found = [*pool.map(_tried, calls)]
        errors = [each for each in found if isinstance(each, GcrError)]
        if errors:
            [*pool.map(lambda node: _end(node, job, run), nodes)]
            raise errors[0]
    return [each for each in found if isinstance(each, Started)]


def _end(node: Node, job: str, run: str) -> None:
    with suppress(GcrError):  # `gcr cluster status` shows it
        node.end(job, run)


def _start(node: Node, rank: int, nodes: Sequence[Node], job: str, program: Program) -> Started:
    variables = {**program.variables, **place_of(rank, nodes)}
    try:
        return Started(node.name, rank, node.start(job, replace(program, variables=variables)))
    except GcrError as error:
        vars(error).pop("exit", None)  # 125, of `gcr run`; here it is the code of the error's type
        raise naming(node.name, error) from error.__cause__


def _tried(call: Callable[[], Started]) -> Started | GcrError:
    try:
        return call()
    except GcrError as error:
        return error
